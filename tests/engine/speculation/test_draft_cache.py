"""Blocks of a draft model: whatever sequences do, none is lost or held twice."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.models.config import ModelConfig
from engine.models.registry import read_config
from engine.speculation.two_model.cache import DraftBlocks, DraftCache
from tests.support.tiny_models import tiny_llama

BLOCK, NUM_BLOCKS = 4, 12

# What happens to which sequence, and its tokens.
EVENTS = st.lists(
    st.tuples(st.sampled_from(["open", "reach", "end", "scrub"]), st.integers(0, 5), st.integers(1, 60)),
    max_size=40,
)


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> ModelConfig:
    return read_config(tiny_llama(tmp_path_factory.mktemp("tiny"), layers=1))


@settings(deadline=None, max_examples=150)
@given(events=EVENTS)
def test_no_block_is_lost_or_held_twice(config: ModelConfig, events: list[tuple[str, int, int]]) -> None:
    cache = DraftCache(config, NUM_BLOCKS, BLOCK, torch.float32, "cpu")
    holders: dict[int, DraftBlocks] = {}

    def held(name: int) -> int:
        return len(holders[name].ids)

    for event, name, num_tokens in events:
        if event == "open":
            holders[name] = cache.open()
        elif event == "end":
            holders.pop(name, None)
        elif name in holders and event == "scrub":
            cache.scrub(holders[name])
            assert not held(name)
        elif name in holders:
            before, wanted = held(name), -(-num_tokens // BLOCK)
            spare = 0 if before else sum(held(each) > 0 for each in holders)
            fits = wanted <= before or wanted - before + spare <= cache.num_free
            assert cache.reach(holders[name], num_tokens) == fits
            assert held(name) == (max(before, wanted) if fits else 0)
        cache.check_invariants()
        assert cache.num_free == NUM_BLOCKS - sum(map(held, holders))
    holders.clear()
    assert cache.num_free == NUM_BLOCKS
