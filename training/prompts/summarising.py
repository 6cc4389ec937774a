"""Passages to summarise: news of our own invention, and pages of Python's manual."""

from __future__ import annotations

from random import Random

from training.prompts import python_library
from training.prompts.filling import fill, lines_of, templates

_LONGEST_PASSAGE = 3600
_MANUAL_SHARE = 0.35
_ASIDE_SHARE = 0.35
_MORE_NEWS_SHARE = 0.45


def _stories() -> list[list[list[str]]]:
    """Each story is told by lines in order; a line has several sentences that tell its part."""
    stories: list[list[list[str]]] = [[]]
    for line in templates("news"):
        if line:
            stories[-1].append(line.split(" | "))
        else:
            stories.append([])
    return stories


def _news(rng: Random) -> str:
    told = []
    for sentences in rng.choice(_stories()):
        for sentence in rng.sample(sentences, rng.randint(1, len(sentences))):
            told.append(sentence)
            if rng.random() < _ASIDE_SHARE:
                told.append(fill(rng.choice(templates("asides")), rng))
    return fill(" ".join(told), rng)


def passage(rng: Random) -> str:
    """Text of a few hundred to 3600 characters."""
    if rng.random() < _MANUAL_SHARE:
        return python_library.passage(rng, rng.randint(500, _LONGEST_PASSAGE))
    text = _news(rng)
    # Longer pieces tell several things.
    while rng.random() < _MORE_NEWS_SHARE and len(text) < _LONGEST_PASSAGE:
        text += " " + _news(rng)
    return text[:_LONGEST_PASSAGE]


def request(rng: Random) -> str:
    """A passage with the request to summarise it."""
    return rng.choice(lines_of("summaries")).format(passage(rng))
