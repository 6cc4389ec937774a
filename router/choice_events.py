"""What the shared request path tells a door of a request's answers, and how it is counted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from kvrelay.v1.common_pb2 import Timeline
from router.answer_text import ShownToken
from router.generation import TokenLogprobs
from router.prepare import PreparedRequest
from router.tools.parsers.base import CallArguments, CallBegin

# Doors write log probabilities of more positions in a thread: some ms of the event loop.
INLINE_POSITIONS = 256


@dataclass(frozen=True, slots=True)
class ChoiceDelta:
    """New tokens of one choice; their text may still be held back.

    Attributes:
        choice: p * n + c.
        text: content that can be shown now.
        token_ids: what is new.
        logprobs: one for each token where log probabilities are asked for, else none.
        shown: with log probabilities, the tokens that go with the text shown so far, each once.
        reasoning: what can be shown of it now.
        calls: calls that begin, and new text of their arguments, in order.
        prompt_logprobs: with the choice's first delta; those of its end, for doors that tell them early.
    """

    choice: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] = ()
    shown: tuple[ShownToken, ...] = ()
    reasoning: str = ""
    calls: tuple[CallBegin | CallArguments, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()


@dataclass(frozen=True, slots=True)
class ChoiceEnd:
    """The last event of one choice.

    Attributes:
        finish_reason: "tool_calls" where the answer stopped and has calls.
        completion_tokens: generated for it; the first choice of a prompt also has those of the answers that
            `best_of` left out.
        cached_tokens: prompt tokens that nobody computed.
        prompt_logprobs: of the prompt's tokens from the second on, where they are asked for.
        reasoning_tokens: of completion_tokens, those before the answer proper.
    """

    choice: int
    finish_reason: Literal["stop", "length", "tool_calls"]
    completion_tokens: int
    cached_tokens: int
    timeline: Timeline
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    reasoning_tokens: int = 0


ChoiceEvent = ChoiceDelta | ChoiceEnd


@dataclass(frozen=True, slots=True)
class UsageCount:
    """Token counts of one client request; reasoning_tokens are part of completion_tokens."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    reasoning_tokens: int = 0


def usage_of(prepared: PreparedRequest, ends: Sequence[ChoiceEnd]) -> UsageCount:
    """Adds all choices up. A prompt counts once, whatever n; cached is what none of its choices computed."""
    cached: dict[int, int] = {}
    for end in ends:
        prompt = end.choice // prepared.num_choices
        cached[prompt] = min(cached.get(prompt, end.cached_tokens), end.cached_tokens)
    return UsageCount(
        prompt_tokens=prepared.prompt_tokens,
        completion_tokens=sum(end.completion_tokens for end in ends),
        cached_tokens=sum(cached.values()),
        reasoning_tokens=sum(end.reasoning_tokens for end in ends),
    )
