"""What comes back: plain frozen dataclasses, no protobuf."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class FinishReason(StrEnum):
    """Why a choice ended."""

    STOP = "stop"
    """The model's end of sequence, a stop token or a stop string."""
    LENGTH = "length"
    """`max_tokens` or the model's context length."""
    TOOL_CALLS = "tool_calls"
    """As `STOP`, and the answer has tool calls."""
    CANCELLED = "cancelled"
    """Cancelled by the client or the router."""
    DEADLINE = "deadline"
    """The request's deadline passed."""
    ERROR = "error"
    """The worker failed."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a function.

    Attributes:
        id: its name, which the message with its result repeats.
        name: the function.
        arguments: JSON text. Valid under the function's schema where calls are required, named or strict;
            else what the model wrote, which may be no JSON.
    """

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """What is new of a call.

    Attributes:
        index: number of the call in the answer.
        id: set on the call's first delta, else empty.
        name: the same.
        arguments: new text of its arguments.
    """

    index: int
    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call.

    Attributes:
        name: unique among the tools; 1 to 64 letters, digits, `_`, `.` and `-`.
        description: what it does, for the model.
        parameters: JSON Schema of its arguments, an object; None for no parameters.
        strict: every call matches the schema, whatever `tool_choice` says.
    """

    name: str
    description: str = ""
    parameters: Mapping[str, Any] | None = None
    strict: bool = False


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a chat.

    Attributes:
        role: "system", "user", "assistant", "tool" or what the chat template knows.
        content: what is said.
        tool_calls: calls that the assistant made.
        tool_call_id: of a tool's result: which call it is of.
        name: given to the chat template.
        reasoning: what the assistant thought; given to the chat template.
    """

    role: str
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""
    name: str = ""
    reasoning: str = ""


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one request.

    Attributes:
        prompt_tokens: of the prompt, whatever the number of choices.
        completion_tokens: of all choices, those that `best_of` left out too.
        cached_tokens: prompt tokens that nobody computed for it.
        reasoning_tokens: of the completion tokens, those before the answers proper.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    reasoning_tokens: int = 0


@dataclass(frozen=True, slots=True)
class LikelyToken:
    """A token that was likely in a place.

    Attributes:
        token_id: the token.
        token: its text as UTF-8; not whole characters where the token is a part of one.
        logprob: its log probability, natural, of the model's own distribution.
    """

    token_id: int
    token: bytes
    logprob: float


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token, with the log probabilities in its place; the first three fields are those of LikelyToken.

    Attributes:
        rank: its rank in the vocabulary, 1 being the likeliest.
        top: the likeliest tokens in its place, best first, as many as were asked for.
    """

    token_id: int
    token: bytes
    logprob: float
    rank: int
    top: tuple[LikelyToken, ...]


@dataclass(frozen=True, slots=True)
class Span:
    """One timed thing, on the wall clock of the machine that did it. Only with `trace=True`.

    Attributes:
        name: "prefill_chunk" or "transfer".
        start_unix_ns: begin, in nanoseconds since 1970.
        end_unix_ns: end.
        num_tokens: tokens covered, from 0 up to this one.
        num_bytes: bytes moved.
        pid: operating system process that did it.
    """

    name: str
    start_unix_ns: int
    end_unix_ns: int
    num_tokens: int
    num_bytes: int
    pid: int


@dataclass(frozen=True, slots=True)
class Timeline:
    """Where the time of one choice went, in seconds.

    Attributes:
        router_queue_s: in the router's admission queue.
        prefill_queue_s: admitted by the prefilling worker, not yet scheduled.
        prefill_s: from the first scheduled chunk to the first token.
        transfer_s: from the end of prefill to the last settled read.
        transfer_busy_s: sum of the single reads, overlapped with prefill or not.
        decode_queue_s: KV is there, the request waits for a place in the batch.
        decode_s: from the first token to the last.
        ttft_s: from arrival at the router to the first token leaving it.
        transfer_bytes: bytes read from the prefill worker.
        local_prefill: the decode worker computed the prompt itself.
        placement_reason: why, in the routing policy's words.
        transport: what moved the KV; empty for local prefill.
        prefill_worker: its name.
        decode_worker: its name.
        attempts: how often the request was dispatched; 1 where nothing failed.
        spans: only with `trace=True`.
        decode_passes: passes of the model that decoded for it, in the last attempt, where its worker
            drafts for it, else 0.
        drafted_tokens: drafts that these verified.
        accepted_tokens: drafts that were right: tokens that cost no pass of their own.
    """

    router_queue_s: float
    prefill_queue_s: float
    prefill_s: float
    transfer_s: float
    transfer_busy_s: float
    decode_queue_s: float
    decode_s: float
    ttft_s: float
    transfer_bytes: int
    local_prefill: bool
    placement_reason: str
    transport: str
    prefill_worker: str
    decode_worker: str
    attempts: int
    spans: tuple[Span, ...] = ()
    decode_passes: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0

    @property
    def tokens_per_pass(self) -> float | None:
        """Tokens that a decoding pass gave on average; None where the worker does not speculate."""
        if not self.decode_passes:
            return None
        return 1 + self.accepted_tokens / self.decode_passes


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of one choice's answer.

    Attributes:
        choice: which of the `n` choices.
        text: new text; never ends inside a character. May be empty.
        token_ids: new tokens. Their text may come with a later chunk.
        finish_reason: set on the last chunk of the choice.
        logprobs: one for each of token_ids, where they were asked for.
        reasoning: new text of a chat's reasoning.
        tool_calls: what is new of a chat's calls, in order.
    """

    choice: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None
    logprobs: tuple[TokenLogprob, ...] = ()
    reasoning: str = ""
    tool_calls: tuple[ToolCallDelta, ...] = ()


@dataclass(frozen=True, slots=True)
class Choice:
    """One complete answer.

    Attributes:
        index: its number, from 0.
        text: with `echo`, the prompt's before the answer's; of a chat without reasoning and calls.
        token_ids: of the answer, the one that ended it too.
        finish_reason: why it ended.
        timeline: where its time went; None where the router sent none.
        logprobs: one for each of token_ids, where they were asked for.
        prompt_logprobs: of the prompt's tokens from the second on, where they were asked for.
        reasoning: what a chat's model thought before it answered.
        tool_calls: functions that a chat's model wants called.
    """

    index: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    timeline: Timeline | None
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()

    @property
    def message(self) -> Message:
        """The answer as the chat's next message."""
        return Message("assistant", self.text, self.tool_calls, reasoning=self.reasoning)


@dataclass(frozen=True, slots=True)
class Generation:
    """A complete result: all choices, in order. The properties speak of the first.

    Attributes:
        request_id: the request's name in the cluster's logs and traces.
        choices: `n` of them.
        usage: counts over all choices.
    """

    request_id: str
    choices: tuple[Choice, ...]
    usage: Usage

    @property
    def text(self) -> str:
        """Text of the first choice."""
        return self.choices[0].text

    @property
    def reasoning(self) -> str:
        """Reasoning of the first choice."""
        return self.choices[0].reasoning

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """Calls of the first choice."""
        return self.choices[0].tool_calls

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Tokens of the first choice."""
        return self.choices[0].token_ids

    @property
    def logprobs(self) -> tuple[TokenLogprob, ...]:
        """Log probabilities of the first choice."""
        return self.choices[0].logprobs

    @property
    def prompt_logprobs(self) -> tuple[TokenLogprob, ...]:
        """Log probabilities of the prompt's tokens from the second on."""
        return self.choices[0].prompt_logprobs

    @property
    def finish_reason(self) -> FinishReason:
        """Why the first choice ended."""
        return self.choices[0].finish_reason

    @property
    def timeline(self) -> Timeline | None:
        """Timeline of the first choice."""
        return self.choices[0].timeline


@dataclass(frozen=True, slots=True)
class Tokenization:
    """Token ids of a prompt or chat, as `generate` would see them, and the model's context length.

    Attributes:
        token_ids: the tokens.
        max_model_len: tokens of prompt and answer together.
        token_strs: each token as the vocabulary spells it, where that was asked for.
    """

    token_ids: tuple[int, ...]
    max_model_len: int
    token_strs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Model:
    """A served model. `max_model_len`: tokens of prompt and answer together."""

    id: str
    max_model_len: int
    created_unix_s: int
