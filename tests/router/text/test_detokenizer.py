from __future__ import annotations

from collections.abc import Callable

import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models

from router.text.detokenizer import Detokenizer
from router.text.token_bytes import TokenBytes
from tests.support.tiny_tokenizer import VOCAB_SIZE, byte_tokenizer

BYTE_LEVEL = byte_tokenizer()
BYTE_LEVEL_BYTES = TokenBytes(BYTE_LEVEL, "test")


def byte_fallback_tokenizer() -> tokenizers.Tokenizer:
    """256 byte tokens, then words with U+2581 for a space, then one special token."""
    words = ["▁", "▁a", "b", "▁▁", "中", "é", "▁word", "\ufffd"]
    tokens = [f"<0x{byte:02X}>" for byte in range(256)] + words
    library = tokenizers.Tokenizer(
        models.BPE(vocab={token: rank for rank, token in enumerate(tokens)}, merges=[], byte_fallback=True)
    )
    library.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    library.add_special_tokens([AddedToken("</s>", special=True, normalized=False)])
    return library


B_TOKEN = 258
BYTE_FALLBACK = byte_fallback_tokenizer()
BYTE_FALLBACK_BYTES = TokenBytes(BYTE_FALLBACK, "test")


def pieces_of(token_bytes: TokenBytes, token_ids: list[int]) -> list[str]:
    detokenizer = Detokenizer(token_bytes)
    return [*(detokenizer.add(token_id) for token_id in token_ids), detokenizer.finish()]


# Random bytes are mostly broken text; a text's own bytes are whole characters cut into tokens.
ids_or_text = st.lists(st.integers(0, VOCAB_SIZE + 5)) | st.text().map(lambda text: list(text.encode()))


@given(ids_or_text)
def test_byte_level_pieces_equal_the_whole(token_ids: list[int]) -> None:
    whole = BYTE_LEVEL.decode(token_ids, skip_special_tokens=True)
    assert "".join(pieces_of(BYTE_LEVEL_BYTES, token_ids)) == whole


@given(
    st.lists(
        st.text(min_size=1, max_size=3).map(lambda text: list(text.encode()))
        | st.integers(256, 264).map(lambda token: [token])
    )
)
def test_byte_fallback_pieces_equal_the_whole(groups: list[list[int]]) -> None:
    token_ids = [token for group in groups for token in group]
    # An answer stands behind its prompt: what the library strips from the start of a text stays.
    whole = BYTE_FALLBACK.decode([B_TOKEN, *token_ids], skip_special_tokens=True).removeprefix("b")
    assert "".join(pieces_of(BYTE_FALLBACK_BYTES, token_ids)) == whole


def test_byte_fallback_keeps_good_characters_beside_bad_bytes() -> None:
    assert pieces_of(BYTE_FALLBACK_BYTES, [*"é".encode(), 0xFF, 0x41]) == ["", "é", "\ufffd", "A", ""]


@given(st.text())
def test_no_piece_ends_inside_a_character(text: str) -> None:
    """Cut anywhere, what was given is a prefix of the text: no U+FFFD stands for half a character."""
    given_so_far = ""
    for piece in pieces_of(BYTE_LEVEL_BYTES, list(text.encode())):
        given_so_far += piece
        assert text.startswith(given_so_far)
    assert given_so_far == text


def test_an_unfinished_character_comes_at_the_end() -> None:
    assert pieces_of(BYTE_LEVEL_BYTES, list("a😀".encode()[:-1])) == ["a", "", "", "", "\ufffd"]


def test_special_tokens_have_no_text() -> None:
    assert pieces_of(BYTE_LEVEL_BYTES, [256, 104, 257, 105, 258]) == ["", "h", "", "i", "", ""]


def test_cost_does_not_grow_with_the_answer() -> None:
    """Counts look-ups instead of seconds: each token is looked up once, however many came before."""

    class Counting:
        lookups = 0

        def __getitem__(self, token_id: int) -> bytes:
            self.lookups += 1
            return b"\x80"

    counting = Counting()
    make: Callable[[object], Detokenizer] = Detokenizer  # type: ignore[assignment]
    detokenizer = make(counting)
    text = "".join(detokenizer.add(0) for _ in range(20_000))
    assert text == "\ufffd" * 20_000
    assert counting.lookups == 20_000
