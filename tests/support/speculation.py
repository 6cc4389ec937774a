"""Engines that speculate, and what is checked of every proposal."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from engine.api import EngineRequest
from engine.config import EngineConfig
from engine.core import LLMEngine
from engine.kv.storage import allocate_pool
from engine.models.base import DraftedLM
from engine.models.features import FeaturePoints
from engine.sequence import Sequence as EngineSequence
from engine.speculation.base import Drafter, Target, TargetPass
from engine.speculation.choice import Drafters
from engine.speculation.config import SpeculationConfig
from engine.speculation.planner import FixedPlanner
from engine.speculation.registry import create_drafter, draft_layers
from engine.speculation.speculator import Speculator
from engine.speculation.tree import DraftTree
from prefix_index.hashing import ChainHasher


class Watched:
    """A drafter whose every proposal is held against what `Drafter` promises.

    Attributes:
        proposed: drafts so far.
        branched: trees of these that were no chains.
    """

    def __init__(self, drafter: Drafter, vocab_size: int, depth: int) -> None:
        self._drafter = drafter
        self._vocab_size = vocab_size
        self._depth = depth
        self._state_types: set[type] = set()
        self.points: FeaturePoints | None = drafter.points
        self.num_layers = drafter.num_layers
        self.max_drafts = drafter.max_drafts
        self.proposed = 0
        self.branched = 0

    def propose(
        self, sequences: Sequence[EngineSequence], counts: Sequence[int]
    ) -> Sequence[DraftTree | None]:
        """As `Drafter.propose`."""
        before = [list(sequence.token_ids) for sequence in sequences]
        trees = self._drafter.propose(sequences, counts)
        assert [list(sequence.token_ids) for sequence in sequences] == before
        assert len(trees) == len(sequences)
        again = self._drafter.propose(sequences, counts)
        for tree, other, count in zip(trees, again, counts, strict=True):
            assert (tree is None) == (other is None)
            if tree is not None and other is not None:
                assert (tree.token_ids, tree.parents) == (other.token_ids, other.parents), "not a function"
                self._check(tree, count)
                self.proposed += len(tree.token_ids)
                self.branched += not tree.is_chain
        for sequence in sequences:
            self._state_types |= set(map(type, sequence.draft_states.values()))
        return trees

    def carried(self, sequence: EngineSequence) -> bytes:
        """As `Drafter.carried`."""
        return self._drafter.carried(sequence)

    def adopt(self, sequence: EngineSequence, carried: bytes) -> None:
        """As `Drafter.adopt`."""
        self._drafter.adopt(sequence, carried)

    def extend(self, found: TargetPass) -> None:
        """As `Drafter.extend`."""
        self._drafter.extend(found)

    def complete(self, sequence: EngineSequence) -> None:
        """As `Drafter.complete`."""
        self._drafter.complete(sequence)

    def states_alive(self) -> int:
        """Draft states of sequences that somebody still holds."""
        gc.collect()
        return sum(type(each) in self._state_types for each in gc.get_objects())

    def _check(self, tree: DraftTree, count: int) -> None:
        assert len(tree.token_ids) <= min(count, self.max_drafts)
        assert max(tree.depths) <= self._depth
        assert all(0 <= token_id < self._vocab_size for token_id in tree.token_ids)
        if tree.distributions is not None:
            assert tree.is_chain, "drawn drafts have no siblings"
            assert tree.distributions.shape == (len(tree.token_ids), self._vocab_size)
            assert tree.distributions.dtype == torch.float32
            torch.testing.assert_close(tree.distributions.sum(-1), torch.ones(len(tree.token_ids)))
            drawn = tree.distributions.gather(1, torch.tensor(tree.token_ids)[:, None])
            assert bool((drawn > 0).all())


def speculating(
    model: DraftedLM,
    speculation: SpeculationConfig,
    drafts: int,
    *,
    model_dir: Path = Path("unused"),
    num_blocks: int = 100,
    clock: Callable[[], float] = time.monotonic,
    **settings: int | bool,
) -> tuple[LLMEngine, Watched]:
    """An engine that asks for `drafts` drafts always and checks its invariants, and its drafter."""
    config = EngineConfig(
        model_dir=model_dir,
        check_invariants=True,
        speculation=speculation,
        **settings,  # type: ignore[arg-type]
    )
    layers = draft_layers(speculation, model.config)
    pool = allocate_pool(model.config, num_blocks, config.block_size, torch.float32, draft_layers=layers)
    target = Target(
        model, pool, config, min(model.config.max_position_embeddings, num_blocks * config.block_size)
    )
    drafter = create_drafter(speculation, target)
    assert drafter is not None
    watched = Watched(drafter, model.config.vocab_size, speculation.num_speculative_tokens)
    drafters = Drafters(watched, speculation.method, branching=speculation.eagle_topk > 1)
    speculator = Speculator(drafters, FixedPlanner(drafts))
    hasher = ChainHasher("tiny", config.block_size)
    return LLMEngine(model, pool, config, hasher, clock=clock, speculator=speculator), watched


def run_alone(engine: LLMEngine, request: EngineRequest) -> tuple[list[int], int]:
    """A request's answer, and the passes that it took."""
    engine.submit(request)
    tokens: list[int] = []
    passes = 0
    while engine.has_work():
        output = engine.step()
        assert not output.failures
        tokens += [token.token_id for token in output.tokens]
        passes += bool(output.tokens)
    return tokens, passes
