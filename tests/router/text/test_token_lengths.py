"""The bound on characters of a token: never too small, and none where a text may vanish."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, models, normalizers, pre_tokenizers

from router.text.token_lengths import longest_token
from tests.router.text.test_detokenizer import BYTE_FALLBACK
from tests.support.tiny_tokenizer import byte_tokenizer

BYTE_LEVEL = byte_tokenizer()
BYTE_LEVEL_BOUND = longest_token(BYTE_LEVEL)


def _composing() -> tokenizers.Tokenizer:
    library = byte_tokenizer()
    library.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Replace(" ", "__")])
    return library


COMPOSING = _composing()
# Letters with marks that compose, and special tokens written out.
texts = st.text() | st.lists(
    st.sampled_from(["a", "\u0301", "\u0323", "\u1112", "\u1161", " ", "<|im_end|>"])
).map("".join)


@given(texts)
def test_no_token_stands_for_more(text: str) -> None:
    assert len("<|endoftext|>") == BYTE_LEVEL_BOUND
    assert len(text) <= BYTE_LEVEL_BOUND * len(BYTE_LEVEL.encode(text).ids)


@given(texts)
def test_nor_where_characters_compose(text: str) -> None:
    bound = longest_token(COMPOSING)
    assert bound == 4 * len("<|endoftext|>")
    assert len(text) <= bound * len(COMPOSING.encode(text).ids)


def test_byte_fallback_has_a_bound() -> None:
    assert longest_token(BYTE_FALLBACK) == len("<0x00>")


def _with(change: Callable[[tokenizers.Tokenizer], None]) -> tokenizers.Tokenizer:
    library = byte_tokenizer()
    change(library)
    return library


def _strip(library: tokenizers.Tokenizer) -> None:
    library.normalizer = normalizers.Strip()


def _shorten(library: tokenizers.Tokenizer) -> None:
    library.normalizer = normalizers.Replace("  ", " ")


def _drop(library: tokenizers.Tokenizer) -> None:
    library.pre_tokenizer = pre_tokenizers.Split(" ", "removed")


def _words(library: tokenizers.Tokenizer) -> None:
    library.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.ByteLevel()]
    )


def _swallow(library: tokenizers.Tokenizer) -> None:
    library.add_special_tokens([AddedToken("<mask>", lstrip=True)])


def _fuse(library: tokenizers.Tokenizer) -> None:
    library.model = models.BPE(vocab={"<unk>": 0}, merges=[], unk_token="<unk>", fuse_unk=True)


@pytest.mark.parametrize("change", [_strip, _shorten, _drop, _words, _swallow, _fuse])
def test_no_bound_where_a_text_may_vanish(change: Callable[[tokenizers.Tokenizer], None]) -> None:
    assert longest_token(_with(change)) is None


def test_cutting_alone_drops_nothing() -> None:
    def split(library: tokenizers.Tokenizer) -> None:
        library.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Split(" ", "isolated"), pre_tokenizers.Digits(), pre_tokenizers.ByteLevel()]
        )

    assert longest_token(_with(split)) == BYTE_LEVEL_BOUND
