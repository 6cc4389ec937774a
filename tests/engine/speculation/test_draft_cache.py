"""Leases of a draft model's blocks: whatever happens to them, none is lost or held twice."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.models.config import ModelConfig
from engine.models.registry import read_config
from engine.speculation.two_model.cache import DraftCache, Lease
from tests.support.tiny_models import tiny_llama

BLOCK, NUM_BLOCKS = 4, 12

# What to do, to which lease, and for how many tokens.
ACTIONS = st.lists(
    st.tuples(st.sampled_from(["begin", "reach", "forget", "scrub"]), st.integers(0, 5), st.integers(1, 60)),
    max_size=40,
)


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> ModelConfig:
    return read_config(tiny_llama(tmp_path_factory.mktemp("tiny"), layers=1))


@settings(deadline=None, max_examples=150)
@given(actions=ACTIONS)
def test_no_block_is_lost_or_held_twice(config: ModelConfig, actions: list[tuple[str, int, int]]) -> None:
    cache = DraftCache(config, NUM_BLOCKS, BLOCK, torch.float32, "cpu")
    leases: dict[int, Lease] = {}
    for action, name, num_tokens in actions:
        if action == "begin":
            leases[name] = cache.lease()
        elif action == "forget":
            leases.pop(name, None)
        elif name in leases:
            lease = leases[name]
            if action == "scrub":
                cache.scrub(lease)
                assert not lease.blocks
            else:
                others = sum(bool(each.blocks) for each in leases.values()) if not lease.blocks else 0
                held, free = len(lease.blocks), cache.num_free
                wanted = -(-num_tokens // BLOCK)
                assert cache.reach(lease, num_tokens) == (wanted <= held or wanted - held + others <= free)
                assert len(lease.blocks) in (0, max(held, wanted))
        cache.check_invariants()
        assert cache.num_free == NUM_BLOCKS - sum(len(each.blocks) for each in leases.values())
    leases.clear()
    lease = None
    assert cache.num_free == NUM_BLOCKS
