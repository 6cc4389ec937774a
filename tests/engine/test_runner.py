from __future__ import annotations

import pytest
import torch

from engine.kv.block_manager import BlockManager
from engine.models.batch import ForwardBatch
from engine.models.features import FeaturePoints, FeatureTap
from engine.runner import MAX_FAILED_STEPS, ModelRunner, RunResult
from engine.sampling.rules import TokenRules
from engine.sampling.sampler import Sampler
from engine.schedule import Schedule
from engine.sequence import Sequence
from engine.speculation.tree import DraftTree
from engine.speculation.verification.base import Bounds
from engine.speculation.verification.registry import create_verifier
from prefix_index.hashing import ChainHasher
from tests.engine.digest_model import VOCAB, DigestModel, kv_of, logits_of, params, request, total_of

BLOCK = 4


class TellingModel(DigestModel):
    """Its features are the tokens."""

    def forward(self, batch: ForwardBatch, kv: torch.Tensor, tap: FeatureTap | None = None) -> torch.Tensor:
        assert tap is not None
        tap.out[:] = batch.token_ids[:, None]
        return super().forward(batch, kv)


class Bench:
    def __init__(self, model: DigestModel | None = None, points: FeaturePoints | None = None) -> None:
        self.model = model or DigestModel()
        self.pool = torch.zeros(31, 1, 2, 1, BLOCK, 1)
        self.blocks = BlockManager(30, BLOCK, 30, ChainHasher("m", BLOCK))
        verifier = create_verifier("coupled", Sampler(), Bounds(frozenset(), 1 << 20))
        self.runner = ModelRunner(self.model, self.pool, self.blocks.tables, verifier, points)

    def sequence(self, name: str, tokens: list[int], computed: int = 0) -> Sequence:
        sequence = Sequence(request(name, tokens, params(9)), 0, hold=False, submitted_s=0.0)
        sequence.rules = TokenRules(sequence.request.sampling, tokens, (), frozenset(), VOCAB)
        assert self.blocks.allocate(sequence, len(tokens) + 1, spare=0) is not None
        for position, (token, digest) in enumerate(kv_of(tokens[:computed])):
            self.pool[sequence.blocks[position // BLOCK], 0, :, 0, position % BLOCK, 0] = torch.tensor(
                [token, digest], dtype=torch.float32
            )
        sequence.num_computed = computed
        return sequence


def schedule(*parts: tuple[Sequence, int]) -> Schedule:
    batch = Schedule()
    for sequence, count in parts:
        batch.add(sequence, count)
    return batch


def tokens_of(result: RunResult) -> dict[int, tuple[int, ...]]:
    return {index: verified.token_ids for index, verified in result.drawn.items()}


def expected(tokens: list[int]) -> int:
    return int(logits_of(kv_of(tokens)[-1][1], total_of(tokens)).argmax())


def test_the_batch_is_flat_and_its_tables_padded() -> None:
    bench = Bench()
    decode = bench.sequence("a", [1, 2, 3, 4, 5, 6], computed=5)
    chunk = bench.sequence("b", [7, 8, 9, 10, 11, 12, 13, 14, 15], computed=2)
    again = bench.sequence("c", [3, 3, 3, 3], computed=3)
    again.recompute_last = True
    batch = bench.runner.build_batch(schedule((decode, 1), (chunk, 4), (again, 1)))
    assert batch.token_ids.tolist() == [6, 9, 10, 11, 12, 3]
    assert batch.positions.tolist() == [5, 2, 3, 4, 5, 3]
    assert batch.query_starts == (0, 1, 5, 6)
    assert batch.context_lens == (6, 6, 4)
    # a has blocks 1 and 2, b 3 to 5, c 6 and 7. Blocks beyond a context are not shown.
    assert batch.block_tables.tolist() == [[[1, 2], [3, 4], [6, 0]]]
    assert batch.slots.tolist() == [[9, 14, 15, 16, 17, 3]]
    assert batch.logits_rows.tolist() == [0, 5]
    assert {tensor.dtype for tensor in (batch.token_ids, batch.slots, batch.block_tables)} == {torch.int64}


def test_only_finished_contexts_draw() -> None:
    bench = Bench()
    whole, part = bench.sequence("a", [1, 2, 3]), bench.sequence("b", [4] * 9)
    result = bench.runner.run(schedule((whole, 3), (part, 4)))
    assert tokens_of(result) == {0: (expected([1, 2, 3]),)}
    assert result.failures == {}
    assert bench.runner.run(schedule((part, 2))).drawn == {}


def test_rows_that_are_not_numbers_fail_alone() -> None:
    bench = Bench(DigestModel(nan=13))
    bad, good = bench.sequence("bad", [1, 13]), bench.sequence("good", [1, 2])
    result = bench.runner.run(schedule((bad, 2), (good, 2)))
    assert tokens_of(result) == {1: (expected([1, 2]),)}
    assert list(result.failures) == [0]
    assert result.failures[0].kv_is_suspect
    assert bench.pool[bad.blocks].isnan().any()
    bench.runner.scrub(bad.blocks)
    assert not bench.pool.isnan().any()


def test_huge_but_finite_rows_are_numbers() -> None:
    bench = Bench()
    forward = bench.model.forward
    bench.model.forward = lambda batch, kv, tap: forward(batch, kv).sign() * 3e38  # type: ignore[method-assign]
    result = bench.runner.run(schedule((bench.sequence("a", [1, 2]), 2)))
    assert result.failures == {}
    assert list(result.drawn) == [0]


def test_an_exception_is_traced_by_running_each_alone() -> None:
    bench = Bench(DigestModel(poison=13))
    first, bad = bench.sequence("a", [1, 2]), bench.sequence("bad", [13, 2])
    last = bench.sequence("b", [4] * 9)
    result = bench.runner.run(schedule((first, 2), (bad, 2), (last, 4)))
    assert tokens_of(result) == {0: (expected([1, 2]),)}
    assert result.failures[1].message == "RuntimeError: poisoned"
    assert not result.failures[1].kv_is_suspect
    assert set(result.failures) == {1}


def features_of(result: RunResult) -> list[int]:
    assert result.features is not None
    return result.features[:, 0].int().tolist()


def test_features_are_those_of_sequences_that_ran_alone() -> None:
    """Each pass writes its features where those of the one before lie."""
    bench = Bench(TellingModel(poison=13), FeaturePoints((0,)))
    parts = [
        bench.sequence(name, tokens) for name, tokens in (("a", [1, 2]), ("bad", [13]), ("b", [4, 5, 6]))
    ]
    result = bench.runner.run(schedule((parts[0], 2), (parts[1], 1), (parts[2], 3)))
    assert features_of(result) == [1, 2, 4, 5, 6]
    assert result.query_starts == (0, 2, 2, 5)


def test_features_are_those_of_the_pass_without_bad_drafts() -> None:
    bench = Bench(TellingModel(nan=13), FeaturePoints((0,)))
    first, drafting = bench.sequence("a", [1, 2, 3], computed=2), bench.sequence("b", [4, 5], computed=1)
    drafting.drafts = DraftTree.chain((13, 7))
    result = bench.runner.run(schedule((first, 1), (drafting, 3)))
    assert tokens_of(result) == {0: (expected([1, 2, 3]),), 1: (expected([4, 5]),)}
    assert features_of(result)[:2] == [3, 5]


def test_failing_whatever_runs_is_raised_in_the_end() -> None:
    bench = Bench(DigestModel(poison=13))
    bad, good = bench.sequence("bad", [13]), bench.sequence("good", [1])
    for _ in range(2):
        for _ in range(MAX_FAILED_STEPS - 1):
            assert set(bench.runner.run(schedule((bad, 1))).failures) == {0}
        # A success in between starts the count anew.
        assert bench.runner.run(schedule((good, 1))).drawn
    for _ in range(MAX_FAILED_STEPS - 1):
        bench.runner.run(schedule((bad, 1)))
    with pytest.raises(RuntimeError, match="poisoned"):
        bench.runner.run(schedule((bad, 1)))
