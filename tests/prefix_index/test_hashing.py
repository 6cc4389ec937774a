from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefix_index.hashing import HASH_BYTES, ChainHasher, hash_model

tokens = st.lists(st.integers(0, 2**32 - 1), max_size=40)


@given(prefix=tokens, left=tokens, right=tokens, block_size=st.integers(1, 5))
def test_equal_prefixes_and_only_they_share_names(
    prefix: list[int], left: list[int], right: list[int], block_size: int
) -> None:
    hasher = ChainHasher("model", block_size)
    first, second = prefix + left, prefix + right
    chains = hasher.chain(first), hasher.chain(second)
    for position, (a, b) in enumerate(zip(*chains, strict=False), 1):
        end = position * block_size
        assert (a == b) == (first[:end] == second[:end])


@given(token_ids=tokens, block_size=st.integers(1, 7))
def test_one_name_for_each_full_block(token_ids: list[int], block_size: int) -> None:
    chain = ChainHasher("model", block_size).chain(token_ids)
    assert len(chain) == len(token_ids) // block_size
    assert len(set(chain)) == len(chain)
    assert all(len(name) == HASH_BYTES for name in chain)


@given(token_ids=tokens, block_size=st.integers(1, 5))
def test_extending_block_by_block_gives_the_chain(token_ids: list[int], block_size: int) -> None:
    hasher = ChainHasher("model", block_size)
    parent, extended = hasher.seed("salt"), []
    for start in range(0, len(token_ids) - block_size + 1, block_size):
        parent = hasher.extend(parent, token_ids[start : start + block_size])
        extended.append(parent)
    assert extended == hasher.chain(token_ids, "salt")


PINNED = ["eafaa2404e197701d85ea7c77d82225a", "232fb5bace0aacf35717be197af00377"]

short_text = st.text(alphabet="ab1\0/", max_size=4)
setting = st.tuples(short_text, short_text, st.integers(1, 12))


@given(one=setting, other=setting)
def test_models_salts_and_block_sizes_never_share_a_seed(
    one: tuple[str, str, int], other: tuple[str, str, int]
) -> None:
    seeds = [ChainHasher(model, block_size).seed(salt) for model, salt, block_size in (one, other)]
    assert (seeds[0] == seeds[1]) == (one == other)


def test_models_salts_and_block_sizes_never_share_a_block() -> None:
    # Text moved between the fields, and the same 24 tokens cut differently.
    settings = product(("m", "m1", ""), ("", "1", "m"), (1, 2, 3, 4))
    chains = [ChainHasher(model, size).chain([7] * 24, salt) for model, salt, size in settings]
    everything = [name for chain in chains for name in chain]
    assert len(set(everything)) == len(everything)


def test_names_are_the_same_in_every_process_and_release() -> None:
    # Pinned: workers and routers of one deployment must agree. Change HASH_VERSION with it.
    chain = ChainHasher("kvrelay-test@1", 4).chain(list(range(8)), "tenant")
    assert [name.hex() for name in chain] == PINNED


@pytest.mark.parametrize("block_size", [0, -1])
def test_block_size_must_be_positive(block_size: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        ChainHasher("model", block_size)


@pytest.mark.parametrize("count", [0, 3, 5])
def test_only_full_blocks_have_names(count: int) -> None:
    hasher = ChainHasher("model", 4)
    with pytest.raises(ValueError, match=f"4 tokens, not {count}"):
        hasher.extend(hasher.seed(""), [1] * count)


@pytest.mark.parametrize("token", [-1, 2**32])
def test_token_ids_outside_of_32_bits_are_refused(token: int) -> None:
    with pytest.raises(OverflowError):
        ChainHasher("model", 1).chain([token])


def test_hash_model_names_both() -> None:
    assert hash_model("tiny", "abc") == "tiny@abc"
