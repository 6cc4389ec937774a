from __future__ import annotations

from engine.api import EngineRequest, SamplingParams
from engine.sequence import Sequence
from engine.speculation.planner import DraftOutcome, FixedPlanner, PassCost
from engine.speculation.stats import DraftBatches
from engine.speculation.tally import SpeculationTally
from engine.speculation.tree import DraftTree

SEQUENCE = Sequence(EngineRequest("r", (1,), SamplingParams(0.0, 1.0, 0, 0, 0, max_tokens=9)), 0, False, 0.0)


def outcome(asked: int, drafted: int, accepted: int, depth: int | None = None) -> DraftOutcome:
    parents = [min(node, (depth or drafted) - 1) for node in range(drafted)]
    tree = DraftTree(tuple(range(drafted)), tuple(parents)) if drafted else None
    return DraftOutcome(SEQUENCE, asked, tree, range(1, accepted + 1))


def test_totals() -> None:
    tally = SpeculationTally()
    first = [outcome(4, 4, 2), outcome(4, 0, 0), outcome(3, 3, 3)]
    tally.observe(PassCost(3, 10, 0, target_s=0.5, draft_s=0.25), first)
    tally.observe(PassCost(1, 7, 5, target_s=1.0, draft_s=0.0), [outcome(6, 6, 1, depth=2)])
    stats = tally.stats(FixedPlanner(4))
    assert (stats.passes, stats.drafted_tokens, stats.accepted_tokens) == (4, 13, 6)
    assert stats.reached_by_position == (3, 3, 2, 1)
    assert stats.accepted_by_position == (3, 2, 1, 0)
    assert stats.passes_by_accepted == (1, 1, 1, 1)
    assert stats.batches == (DraftBatches(1, 1, 1, 6), DraftBatches(2, 1, 3, 11))
    assert (stats.draft_s, stats.pass_s) == (0.25, 1.5)
    assert stats.off == ()


def test_positions_behind_the_last_counted_one_are_counted_with_it() -> None:
    tally = SpeculationTally()
    tally.observe(PassCost(1, 21, 0, 1.0, 0.0), [outcome(20, 20, 18)])
    stats = tally.stats(FixedPlanner(20))
    assert stats.accepted_tokens == 18
    assert stats.reached_by_position == (1,) * 15 + (5,)
    assert stats.accepted_by_position == (1,) * 15 + (3,)


def test_a_pass_without_decodes_is_none() -> None:
    tally = SpeculationTally()
    tally.observe(PassCost(0, 0, 100, 1.0, 0.0), [])
    assert tally.stats(FixedPlanner(1)).pass_s == 0
