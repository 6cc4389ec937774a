"""The bytes that each token stands for, so that text can grow token by token without decoding anew.

Two kinds of vocabulary are in use and supported:

- byte-level BPE (GPT-2 and its heirs: Llama 3, Qwen2, SmolLM2): each character of a token names a byte;
- SentencePiece-like with byte fallback (Llama 2, Mistral): U+2581 is a space, `<0xNN>` is one byte.

The byte alphabet is that of Radford et al., "Language Models are Unsupervised Multitask Learners" (2019).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import tokenizers

from router.text.errors import ModelFilesError

_METASPACE = "▁"
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def _byte_alphabet() -> dict[str, int]:
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    alphabet = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(256) if byte not in set(printable))
    alphabet.update({chr(256 + rank): byte for rank, byte in enumerate(others)})
    return alphabet


_ALPHABET = _byte_alphabet()


def _byte_level(token: str) -> bytes:
    """A token with any character outside the alphabet is taken as plain text, as the library does."""
    try:
        return bytes([_ALPHABET[character] for character in token])
    except KeyError:
        return token.encode()


def _byte_fallback(token: str) -> bytes:
    match = _BYTE_TOKEN.fullmatch(token)
    return bytes([int(match[1], 16)]) if match else token.replace(_METASPACE, " ").encode()


def _decoder_steps(library: tokenizers.Tokenizer) -> list[dict[str, object]]:
    decoder = json.loads(library.to_str()).get("decoder")
    if decoder is None:
        return []
    return list(decoder["decoders"]) if decoder["type"] == "Sequence" else [decoder]


def _is_metaspace(replace: dict[str, object]) -> bool:
    return replace["pattern"] == {"String": _METASPACE} and replace["content"] == " "


class TokenBytes:
    """Maps token ids to bytes. Ids without a token map to none, special tokens where they are not to be kept.

    Args:
        library: the tokenizer.
        source: its file, for messages.
        keep_special: special tokens map to their own text.
        shown: so do these, in any case.

    Raises ModelFilesError for a decoder of another kind.
    """

    def __init__(
        self,
        library: tokenizers.Tokenizer,
        source: str,
        *,
        keep_special: bool = False,
        shown: frozenset[str] = frozenset(),
    ) -> None:
        self._library = library
        self._special = frozenset(
            token_id
            for token_id, token in library.get_added_tokens_decoder().items()
            if token.special and not keep_special and token.content not in shown
        )
        self._known: dict[int, bytes] = {}
        self._convert = self._choose(_decoder_steps(library), source)

    @staticmethod
    def _choose(steps: list[dict[str, object]], source: str) -> Callable[[str], bytes]:
        kinds = [step["type"] for step in steps]
        if kinds in (["ByteLevel"], ["ByteLevel", "Fuse"]):
            return _byte_level
        # The space that some drop from the start of a text is the prompt's, never the answer's.
        if steps[-1:] == [{"type": "Strip", "content": " ", "start": 1, "stop": 0}]:
            steps, kinds = steps[:-1], kinds[:-1]
        if kinds == ["Replace", "ByteFallback", "Fuse"] and _is_metaspace(steps[0]):
            return _byte_fallback
        raise ModelFilesError(
            f"{source}: a decoder of {kinds or 'no kind'} is not supported; byte-level BPE and SentencePiece "
            "with byte fallback are"
        )

    def __getitem__(self, token_id: int) -> bytes:
        known = self._known.get(token_id)
        if known is None:
            token = None if token_id in self._special else self._library.id_to_token(token_id)
            known = self._known[token_id] = b"" if token is None else self._convert(token)
        return known
