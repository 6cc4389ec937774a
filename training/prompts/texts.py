"""Prompts from a folder of texts: passages to summarise, topics to ask about, functions to complete.

Templates alone have few words; what a head learns from them it does not do elsewhere. A folder may hold, at
any depth:

- `*.txt`, UTF-8 prose whose paragraphs are parted by empty lines: passages to summarise and to ask about,
- `*.topics`, a topic a line: what questions and instructions are about,
- `*.py`, whose documented functions are to be completed.

What a folder lacks comes from the built-in prompts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

from training.prompts import chat, code, maths, python_library, summarising
from training.prompts.filling import fill, lines_of
from training.prompts.mixture import Message, Prompt

_SHORTEST_PARAGRAPH = 120
_PASSAGE_CHARACTERS = (350, 3200)
_SYSTEM_SHARE = 0.06
_BUILTIN_SHARE = 0.3
"""Of prompts of a kind for which the folder has something."""


@dataclass(frozen=True, slots=True)
class Texts:
    """What a folder holds.

    Attributes:
        passages: paragraphs of each text, in order.
        topics: what to ask about.
        functions: heads of functions, docstring included.
    """

    passages: tuple[tuple[str, ...], ...]
    topics: tuple[str, ...]
    functions: tuple[str, ...]


def read_texts(folder: Path) -> Texts:
    """Reads a folder; Python files that this Python cannot parse are left out.

    Raises:
        OSError: a file that cannot be read.
        UnicodeDecodeError: prose or topics that are not UTF-8.
        ValueError: nothing of use in the folder.
    """
    passages = []
    for path in sorted(folder.rglob("*.txt")):
        parts = (" ".join(part.split()) for part in path.read_text(encoding="utf-8").split("\n\n"))
        if kept := tuple(part for part in parts if len(part) >= _SHORTEST_PARAGRAPH):
            passages.append(kept)
    topics = [
        line
        for path in sorted(folder.rglob("*.topics"))
        for line in path.read_text(encoding="utf-8").splitlines()
        if line
    ]
    functions = [head for path in sorted(folder.rglob("*.py")) for head in _functions(path)]
    if not (passages or topics or functions):
        raise ValueError(f"{folder} holds no texts (*.txt), topics (*.topics) or functions (*.py)")
    return Texts(tuple(passages), tuple(dict.fromkeys(topics)), tuple(dict.fromkeys(functions)))


def _functions(path: Path) -> list[str]:
    try:
        return python_library.documented_functions(path)
    except (SyntaxError, ValueError):
        return []


def text_prompts(texts: Texts, seed: int) -> Iterator[Prompt]:
    """Prompts without end, no two alike, the same for the same texts and seed."""
    kinds: tuple[tuple[str, float, Callable[[Random], str]], ...] = (
        ("chat", 0.52, lambda rng: _question(texts, rng)),
        ("summarising", 0.25, lambda rng: _request(texts, rng)),
        ("code", 0.15, lambda rng: _code(texts, rng)),
        ("maths", 0.08, maths.problem),
    )
    seen: set[tuple[Message, ...]] = set()
    index = 0
    while True:
        rng = Random(f"texts/{seed}/{index}")
        index += 1
        (kind, _, build) = rng.choices(kinds, [weight for _, weight, _ in kinds])[0]
        messages = [Message("user", build(rng))]
        if rng.random() < _SYSTEM_SHARE:
            messages.insert(0, Message("system", chat.role(rng)))
        if tuple(messages) not in seen:
            seen.add(tuple(messages))
            yield Prompt(kind, tuple(messages))


def _question(texts: Texts, rng: Random) -> str:
    if not texts.topics or rng.random() < _BUILTIN_SHARE:
        return chat.question(rng)
    if texts.passages and rng.random() < 0.1:
        return rng.choice(lines_of("passage_questions")).format(_passage(texts, rng, 900))
    return fill(rng.choice(lines_of("topic_questions")), rng, {"topic": texts.topics})


def _request(texts: Texts, rng: Random) -> str:
    if not texts.passages or rng.random() < _BUILTIN_SHARE / 2:
        return summarising.request(rng)
    return rng.choice(lines_of("summaries")).format(_passage(texts, rng, _PASSAGE_CHARACTERS[1]))


def _passage(texts: Texts, rng: Random, most: int) -> str:
    """Consecutive paragraphs of one text, cut at the end of a sentence where there is one."""
    # Between each text alike and each paragraph alike: long texts differ less within themselves.
    weights = [len(text) ** 0.5 for text in texts.passages]
    paragraphs = rng.choices(texts.passages, weights)[0]
    wanted = rng.randint(_PASSAGE_CHARACTERS[0], most)
    first = rng.randrange(len(paragraphs))
    passage = paragraphs[first]
    for paragraph in paragraphs[first + 1 :]:
        if len(passage) >= wanted:
            break
        passage += " " + paragraph
    if len(passage) <= wanted:
        return passage
    end = passage.rfind(". ", wanted // 2, wanted)
    return passage[: end + 1] if end > 0 else passage[:wanted]


def _code(texts: Texts, rng: Random) -> str:
    drawn = rng.random()
    if drawn < 0.4:
        return code.unfinished(rng)
    if drawn < 0.6:
        return code.question(rng)
    if texts.functions:
        return f"{rng.choice(lines_of('completions'))}{rng.choice(texts.functions)}\n"
    return python_library.unfinished(rng)
