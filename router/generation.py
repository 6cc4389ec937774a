"""The seam between the front doors and the dispatcher: tokens in, an async iterator of tokens out.

Hub file. Only frozen dataclasses, the error and protocols without behaviour belong here; no network.

How a door uses it:

    async with dispatcher.admit(deadline=deadline, arrived_at=arrived_at) as admission:
        generation = dispatcher.generate(request, admission)      # one for each choice
        try:
            async for event in generation:
                match event:
                    case TokenDelta(): ...                        # `await generation.finish()` to stop early
                    case GenerationEnd(): ...                     # always the last event
        finally:
            await generation.aclose()
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, Protocol

from kvrelay.v1.common_pb2 import Timeline


@dataclass(frozen=True, slots=True)
class GrammarSpec:
    """What an answer's text must match; `source` is JSON Schema text, a regular expression or Lark."""

    kind: Literal["json_schema", "regex", "lark"]
    source: str


@dataclass(frozen=True, slots=True)
class ResolvedSampling:
    """How tokens are chosen, with every default applied: the same fields as `kvrelay.v1.SamplingParams`.

    Attributes:
        temperature: 0 is greedy; range [0, 2].
        top_p: nucleus mass in (0, 1]; 1 is off.
        top_k: 0 is off.
        seed: key of the counter-based draws, unsigned 64 bits; drawn by the door where the client gave none.
        choice: which of the client request's `n` choices this is, from 0.
        max_tokens: most tokens to generate, at least 1; prompt and answer together fit the context.
        min_tokens: EOS and stop tokens cannot end the answer before so many tokens.
        stop_token_ids: ids that end the answer, beside the model's EOS ids.
        ignore_eos: EOS does not end the answer.
        min_p: keep tokens at least so many times as likely as the likeliest, [0, 1]; 0 is off.
        typical_p: mass of locally typical sampling, (0, 1]; 1 is off.
        presence_penalty: taken off the logits of tokens that the answer has, [-2, 2]; 0 is off.
        frequency_penalty: taken off as often as the answer has the token, [-2, 2]; 0 is off.
        repetition_penalty: divides positive and multiplies negative logits of tokens in the prompt or the
            answer, above 0; 1 is off.
        logit_bias: (token id, what is added to its logit) pairs, each id once.
        bad_words: token sequences that the answer never contains.
        allowed_token_ids: the only ids that may be drawn; empty for all.
        logprobs: likeliest tokens to report beside each drawn one, 0 to 20; None reports nothing.
        prompt_logprobs: the same for the prompt's tokens from the second on.
        grammar: what the answer must match.
        own_seed: the client chose the seed.
    """

    temperature: float
    top_p: float
    top_k: int
    seed: int
    choice: int
    max_tokens: int
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    min_p: float = 0.0
    typical_p: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    bad_words: tuple[tuple[int, ...], ...] = ()
    allowed_token_ids: tuple[int, ...] = ()
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    grammar: GrammarSpec | None = None
    own_seed: bool = False


@dataclass(frozen=True, slots=True)
class Speculation:
    """How tokens are guessed ahead for one request: the same fields as `kvrelay.v1.Speculation`.

    Attributes:
        method: a draft method; empty for the deployment's own.
        num_speculative_tokens: most drafts one behind the other, 1 to 63; None for the deployment's bound.
    """

    method: str
    num_speculative_tokens: int | None


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One choice of one client request: tokens only, fully resolved.

    Attributes:
        request_id: unique for each choice of each request.
        prompt_token_ids: at least one; each in [0, vocabulary size).
        sampling: how tokens are chosen.
        cache_salt: separates the prefix cache of tenants.
        deadline: seconds since 1970 (`time.time()`); None for none.
        trace: adds spans to the timeline.
        priority: lower runs first, and is preempted last; equals by arrival.
        speculation: how tokens are guessed ahead; None for the deployment's way.
    """

    request_id: str
    prompt_token_ids: tuple[int, ...]
    sampling: ResolvedSampling
    cache_salt: str = ""
    deadline: float | None = None
    trace: bool = False
    priority: int = 0
    speculation: Speculation | None = None


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Natural log probabilities at one position, before temperature, penalties, bias, grammar, truncation.

    Attributes:
        logprob: of the token that stands there.
        rank: its rank in the vocabulary, 1 being the likeliest.
        top: (token id, log probability) of the likeliest tokens, best first.
    """

    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class TokenDelta:
    """New tokens of the answer. `index` is the position of the first, from 0; never a gap or a repeat.

    `logprobs` has one entry for each token where the sampling asks for them, else none. `prompt_logprobs`
    come with the first tokens and are those of GenerationEnd.
    """

    token_ids: tuple[int, ...]
    index: int
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()


@dataclass(frozen=True, slots=True)
class GenerationEnd:
    """The last event of a generation.

    Attributes:
        finish_reason: "stop" (EOS, a stop token id, or `Generation.finish`) or "length".
        cached_tokens: prompt tokens that nobody computed for this request.
        completion_tokens: tokens of the answer, each counted once whatever failed on the way.
        timeline: where the time went; the caller may keep it.
        prompt_logprobs: of the prompt's tokens from the second on, where the sampling asks for them.
    """

    finish_reason: Literal["stop", "length"]
    cached_tokens: int
    completion_tokens: int
    timeline: Timeline
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()


class ErrorKind(StrEnum):
    """Why a generation failed, as a front door must tell its client."""

    OVERLOADED = "overloaded"
    UNAVAILABLE = "unavailable"
    DEADLINE = "deadline"
    INVALID = "invalid"
    INTERNAL = "internal"
    CANCELLED = "cancelled"


class GenerationError(Exception):
    """A request failed for good; `message` is fit for the client.

    Attributes:
        kind: what sort of failure.
        message: what happened, for the client.
        retry_after_s: when to try again, seconds; set with OVERLOADED and UNAVAILABLE.
    """

    def __init__(self, kind: ErrorKind, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind = kind
        self.message = message
        self.retry_after_s = retry_after_s


@dataclass(frozen=True, slots=True)
class Admission:
    """Places among the running generations, held while its context manager is open.

    Attributes:
        arrived_at: when the client's request reached the router, `time.monotonic()` seconds.
        queue_s: seconds spent in the admission queue.
    """

    arrived_at: float
    queue_s: float


class Generation(Protocol):
    """The answer to one GenerationRequest, for one consumer.

    Iterating yields `TokenDelta`s and then one `GenerationEnd`; it raises GenerationError where the request
    failed for good. Cancelling the task that iterates, `finish` and `aclose` each end the request everywhere.
    """

    def __aiter__(self) -> AsyncIterator[TokenDelta | GenerationEnd]: ...

    async def __anext__(self) -> TokenDelta | GenerationEnd: ...

    async def finish(self) -> GenerationEnd:
        """Ends the answer early because the caller's own rule says so (a stop string).

        Cancels the request on its workers, waits a moment for the worker's timeline and returns an end with
        finish_reason "stop" that counts the tokens yielded so far.
        """
        ...

    async def aclose(self) -> None:
        """Ends the request everywhere if it has not ended. Safe to call at any time, more than once."""
        ...


class Dispatcher(Protocol):
    """What the front doors ask of the router's core. Implemented by `router.dispatch.ClusterDispatcher`."""

    def admit(
        self,
        deadline: float | None = None,
        arrived_at: float | None = None,
        places: int = 1,
        priority: int = 0,
    ) -> AbstractAsyncContextManager[Admission]:
        """Waits for places; one admission covers all choices of a client request.

        Args:
            deadline: seconds since 1970; None for none.
            arrived_at: `time.monotonic()` when the client's request came in; None for now.
            places: generations that will run at once, at least 1. A request for more than there are waits
                for all of them.
            priority: lower ones come in first, equals in order of arrival.

        Raises (on entering): GenerationError OVERLOADED with `retry_after_s` where the queue is full,
        DEADLINE where the deadline passes first. Cancelling while queued gives the place up.
        """
        ...

    def generate(self, request: GenerationRequest, admission: Admission) -> Generation:
        """Starts nothing until iterated. Must be iterated and closed inside the admission's context."""
        ...

    @property
    def ready(self) -> bool:
        """Whether a request could be served now: the workers that it takes are alive."""
        ...

    @property
    def draft_methods(self) -> tuple[str, ...]:
        """What requests may name as their draft method; empty while no worker is known that decodes."""
        ...
