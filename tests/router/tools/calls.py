"""Reads answers with the parsers, whole or in pieces."""

from __future__ import annotations

from collections.abc import Iterable

from router.tools.parsers.base import CallArguments, CallBegin, CallForm, CallParser, CallPiece, ContentPiece

NAMES = frozenset(("f", "get_weather"))


def together(pieces: Iterable[CallPiece]) -> list[tuple[str, str]]:
    """("content", text) and (function's name, arguments), neighbours of one kind joined."""
    parts: list[tuple[str, str]] = []
    for piece in pieces:
        match piece:
            case ContentPiece(text):
                kind, text = ("content", text)
                if parts and parts[-1][0] == "content":
                    text = parts.pop()[1] + text
                parts.append((kind, text))
            case CallBegin(index, call_id, name):
                assert call_id.startswith("call_")
                assert index == sum(kind != "content" for kind, _ in parts)
                parts.append((name, ""))
            case CallArguments(index, text):
                name, before = parts.pop()
                assert name != "content"
                parts.append((name, before + text))
    return parts


def read(
    form: CallForm, text: str, cuts: Iterable[int] = (), *, single: bool = False
) -> list[tuple[str, str]]:
    """What an answer has, given in pieces that end at the cuts."""
    parser = CallParser(form, NAMES, single=single)
    pieces: list[CallPiece] = []
    start = 0
    for end in [*sorted(cuts), len(text)]:
        pieces += parser.add(text[start:end])
        start = end
    return together([*pieces, *parser.finish()])
