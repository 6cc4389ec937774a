"""A draft whose pass gives NaN costs time alone: no answer, no failure and no block tells of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from engine.api import EngineRequest
from engine.config import EngineConfig
from engine.core import LLMEngine
from engine.kv.storage import allocate_pool
from engine.models.base import DraftedLM
from engine.models.loader import load_model
from engine.sequence import Sequence as EngineSequence
from engine.speculation.choice import Drafters
from engine.speculation.planner import FixedPlanner
from engine.speculation.speculator import Speculator
from engine.speculation.tree import DraftTree
from prefix_index.hashing import ChainHasher
from tests.engine.digest_model import params, run_all
from tests.engine.scripted_drafter import ScriptedDrafter
from tests.support.engines import engine_over
from tests.support.reference_model import prompt
from tests.support.tiny_models import tiny_llama

POISON = 9
ANSWERS = params(12, allowed_token_ids=frozenset(range(20)) - {POISON})


class Poisoning(ScriptedDrafter):
    """Drafts the poison among right tokens: behind one, or beside them."""

    def __init__(self, answers: dict[str, list[int]], branches: int) -> None:
        super().__init__(lambda sequence: answers[sequence.request_id], 20)
        self._branching = branches > 1

    def propose(
        self, sequences: Sequence[EngineSequence], counts: Sequence[int]
    ) -> Sequence[DraftTree | None]:
        return [self._poisoned(sequence) for sequence in sequences]

    def _poisoned(self, sequence: EngineSequence) -> DraftTree | None:
        truth = tuple(self._answer_of(sequence)[sequence.next_index :][:2])
        self.proposed += 1
        if len(truth) < 2:
            return DraftTree.chain((POISON,))
        if self._branching:
            return DraftTree((POISON, truth[0], POISON, truth[1], POISON), (0, 0, 2, 2, 4))
        return DraftTree.chain((truth[0], POISON, *truth[1:], POISON))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return tiny_llama(tmp_path_factory.mktemp("target"), tie=False)


def poisoned(folder: Path, backend: str) -> DraftedLM:
    """A model whose layers see NaN where the poison is put in; it may come out all the same."""
    model = load_model(folder, ops="cpu" if backend == "cpu" else "torch", attention_backend=backend)
    model.shared().embedding[POISON] = torch.nan
    return model


@pytest.mark.parametrize("branches", [1, 2], ids=["chain", "tree"])
@pytest.mark.parametrize("backend", ["sdpa", "reference", "cpu"])
def test_it_costs_time_alone(folder: Path, backend: str, branches: int) -> None:
    model = poisoned(folder, backend)
    asked = [EngineRequest(f"r{n}", tuple(prompt(5 + 3 * n, n)), ANSWERS) for n in range(3)]
    asked = [r for r in asked if POISON not in r.prompt_token_ids]
    plain, _ = engine_over(model)
    for request in asked:
        plain.submit(request)
    expected, _ = run_all(plain)

    config = EngineConfig(Path("unused"), block_size=4, check_invariants=True)
    pool = allocate_pool(model.config, 60, 4, torch.float32)
    drafter = Poisoning(expected.tokens, branches)
    speculator = Speculator(Drafters(drafter, "poisoning", branching=branches > 1), FixedPlanner(5))
    engine = LLMEngine(model, pool, config, ChainHasher("tiny", 4), speculator=speculator)
    for request in asked:
        engine.submit(request)
    answers, outputs = run_all(engine)
    assert not [failure for output in outputs for failure in output.failures]
    assert answers.tokens == expected.tokens
    assert drafter.proposed > 0
    right = sum(report.accepted for output in outputs for report in output.drafts)
    # The others multiply what is not seen by 0: their passes have to be repeated without drafts.
    assert (right > 0) is (backend == "reference")
    assert bool(pool.isfinite().all())
