"""The mixture of prompts that a head is trained on by default."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random

from training.prompts import chat, code, maths, python_library, summarising


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a chat; `role` is "system", "user" or "assistant"."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Prompt:
    """What the target answers.

    Attributes:
        kind: what figures are broken down by.
        messages: a chat whose last message is the user's.
    """

    kind: str
    messages: tuple[Message, ...]


_KINDS: tuple[tuple[str, float, Callable[[Random], str]], ...] = (
    ("chat", 0.40, chat.question),
    ("code", 0.16, code.unfinished),
    ("code", 0.07, code.question),
    ("code", 0.07, python_library.unfinished),
    ("maths", 0.10, maths.problem),
    ("summarising", 0.20, summarising.request),
)
_SYSTEM_SHARE = 0.06


def builtin_prompts(seed: int) -> Iterator[Prompt]:
    """Prompts without end, no two alike, the same for the same seed."""
    seen: set[tuple[Message, ...]] = set()
    index = 0
    while True:
        prompt = _prompt(Random(f"{seed}/{index}"))
        index += 1
        if prompt.messages not in seen:
            seen.add(prompt.messages)
            yield prompt


def _prompt(rng: Random) -> Prompt:
    (kind, _, build) = rng.choices(_KINDS, [weight for _, weight, _ in _KINDS])[0]
    messages = [Message("user", build(rng))]
    if rng.random() < _SYSTEM_SHARE:
        messages.insert(0, Message("system", chat.role(rng)))
    return Prompt(kind, tuple(messages))
