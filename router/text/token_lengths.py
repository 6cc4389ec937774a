"""How many characters of a text one token can stand for, so that a hopeless prompt is known before it is
tokenized."""

from __future__ import annotations

import json
from collections.abc import Iterator

import tokenizers

# Normalizers under which no character disappears, with the most characters that become one: composition
# (Unicode 16, annex 15) joins at most a letter and three marks; what only replaces or adds keeps the number.
_SHRINKING = {"NFC": 4, "NFKC": 4, "NFD": 1, "NFKD": 1, "Prepend": 1, "Lowercase": 4}
# Pre-tokenizers that cut a text and drop nothing of it.
_KEEPING = {"ByteLevel", "Metaspace", "Digits"}


def _steps(part: dict[str, object] | None, plural: str) -> Iterator[dict[str, object]]:
    if part is None:
        return
    inner = part.get(plural)
    if isinstance(inner, list):
        for step in inner:
            yield from _steps(step, plural)
    else:
        yield part


def _replaces_one_by_one(step: dict[str, object]) -> bool:
    pattern = step.get("pattern")
    text = pattern.get("String") if isinstance(pattern, dict) else None
    content = step.get("content")
    return isinstance(text, str) and isinstance(content, str) and len(text) <= len(content)


def longest_token(library: tokenizers.Tokenizer) -> int | None:
    """Most characters of a text that become one token; None where some may vanish, so that there is no bound.

    A token of a byte-level vocabulary has a character for each byte, so it never stands for more characters
    than it has itself.
    """
    parts = json.loads(library.to_str())
    shrink = 1
    for step in _steps(parts.get("normalizer"), "normalizers"):
        kind = str(step["type"])
        if kind == "Replace":
            if not _replaces_one_by_one(step):
                return None
        elif kind in _SHRINKING:
            shrink *= _SHRINKING[kind]
        else:
            return None
    for step in _steps(parts.get("pre_tokenizer"), "pretokenizers"):
        if step["type"] not in _KEEPING and step.get("behavior") in (None, "Removed"):
            return None
    # Spaces beside such an added token, and unknown characters without byte fallback, go in without end.
    if any(token.lstrip or token.rstrip for token in library.get_added_tokens_decoder().values()):
        return None
    if parts["model"].get("fuse_unk") and not parts["model"].get("byte_fallback"):
        return None
    return shrink * max(map(len, library.get_vocab(with_added_tokens=True)), default=1)
