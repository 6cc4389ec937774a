"""Requests that choose how they are drafted for, beside others in one engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.api import EngineRequest, StepOutput
from engine.config import EngineConfig
from engine.core import LLMEngine
from engine.kv.storage import allocate_pool
from engine.models.base import DraftedLM
from engine.models.loader import load_model
from engine.speculation.assembly import make_drafters, make_speculator
from engine.speculation.base import Target
from engine.speculation.choice import Drafters
from engine.speculation.config import RequestSpeculation, SpeculationConfig
from engine.speculation.eagle.state import EagleState
from engine.speculation.planner import DraftOutcome, FixedPlanner, PassCost
from engine.speculation.registry import draft_layers, methods_without_model
from engine.speculation.speculator import Speculator
from prefix_index.hashing import ChainHasher
from tests.engine.digest_model import run_all
from tests.engine.sampling_rows import GREEDY
from tests.support.eagle_heads import HeadShape, flat_config, make_eagle3, write_head
from tests.support.reference_model import prompt
from tests.support.tiny_models import tiny_llama

# Heads are random: they are sure of nothing.
CHAIN = {"num_speculative_tokens": 4, "prompt_lookup_min": 1, "draft_p_min": 0.0}
TREE = {**CHAIN, "eagle_topk": 3, "num_draft_tokens": 12}
ASKED: dict[str, RequestSpeculation | None] = {
    "deployed": None,
    "named": RequestSpeculation("eagle3"),
    "short": RequestSpeculation(num_speculative_tokens=2),
    "ngram": RequestSpeculation("ngram"),
    "short ngram": RequestSpeculation("ngram", 1),
    "suffix": RequestSpeculation("suffix"),
    "none": RequestSpeculation("none"),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> DraftedLM:
    torch.set_num_threads(1)
    folder = tiny_llama(tmp_path_factory.mktemp("target"), layers=3)
    return load_model(folder, ops="torch", attention_backend="sdpa")


@pytest.fixture(scope="module")
def head(model: DraftedLM, tmp_path_factory: pytest.TempPathFactory) -> Path:
    shape = HeadShape(model.config)
    return write_head(tmp_path_factory.mktemp("head"), flat_config(shape), make_eagle3(shape))


class Noting(FixedPlanner):
    """As many drafts as there may be, and what became of them by request."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.outcomes: dict[str, list[DraftOutcome]] = {}

    def observe(self, cost: PassCost, outcomes: Sequence[DraftOutcome]) -> None:
        for outcome in outcomes:
            self.outcomes.setdefault(outcome.sequence.request_id, []).append(outcome)


@dataclass(slots=True)
class Deployment:
    """An engine and what its planner notes."""

    engine: LLMEngine
    pool: torch.Tensor
    drafters: Drafters
    planner: Noting

    def answers(self, requests: list[EngineRequest]) -> tuple[dict[str, list[int]], list[StepOutput]]:
        for request in requests:
            self.engine.submit(request)
        answers, outputs = run_all(self.engine)
        assert not [failure for output in outputs for failure in output.failures]
        return {request.request_id: list(answers.of(request.request_id)[0]) for request in requests}, outputs


def deploy(
    model: DraftedLM, speculation: SpeculationConfig, num_blocks: int = 120, **settings: Any
) -> Deployment:
    config = EngineConfig(
        Path("unused"), block_size=4, check_invariants=True, speculation=speculation, **settings
    )
    layers = draft_layers(speculation, model.config)
    pool = allocate_pool(model.config, num_blocks, 4, torch.float32, draft_layers=layers)
    drafters = make_drafters(Target(model, pool, config, 256))
    planner = Noting(drafters.max_drafts)
    speculator = Speculator(drafters, planner)
    engine = LLMEngine(model, pool, config, ChainHasher("tiny", 4), speculator=speculator)
    return Deployment(engine, pool, drafters, planner)


def without_speculator(model: DraftedLM) -> LLMEngine:
    config = EngineConfig(Path("unused"), block_size=4, check_invariants=True)
    pool = allocate_pool(model.config, 120, 4, torch.float32)
    return LLMEngine(model, pool, config, ChainHasher("tiny", 4))


def requests_of(asked: dict[str, RequestSpeculation | None], temperature: float) -> list[EngineRequest]:
    """Texts that repeat themselves, two with a common prefix for each way to ask."""
    few = frozenset(range(8))
    params = replace(GREEDY, temperature=temperature, max_tokens=24, ignore_eos=True, allowed_token_ids=few)
    words = (*prompt(6, 1), *prompt(5, 2))
    return [
        EngineRequest(
            f"{name} {turn}",
            (*words, *words, *prompt(turn, 3), *words[:4]),
            replace(params, seed=number),
            speculation=choice,
        )
        for turn in (1, 2)
        for number, (name, choice) in enumerate(asked.items())
    ]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("shape", [CHAIN, TREE], ids=["chain", "tree"])
@pytest.mark.parametrize("num_blocks", [120, 16], ids=["room", "preemption"])
def test_requests_of_all_methods_in_one_batch_get_the_tokens_of_none(
    model: DraftedLM, head: Path, shape: dict[str, int], temperature: float, num_blocks: int
) -> None:
    requests = requests_of(ASKED, temperature)
    plain = without_speculator(model)
    for request in requests:
        plain.submit(replace(request, speculation=None))
    expected, _ = run_all(plain)
    deployed = deploy(model, SpeculationConfig("eagle3", head, **shape), num_blocks, max_batched_tokens=64)
    answers, outputs = deployed.answers(requests)
    assert answers == {request.request_id: list(expected.of(request.request_id)[0]) for request in requests}
    assert (deployed.engine.stats().preemptions_total > 0) is (num_blocks == 16)

    drafted = dict.fromkeys(ASKED, 0)
    deepest = dict.fromkeys(ASKED, 0)
    for name, outcomes in deployed.planner.outcomes.items():
        asked = name.rpartition(" ")[0]
        drafted[asked] += sum(outcome.drafted for outcome in outcomes)
        deepest[asked] = max(deepest[asked], *(outcome.depth for outcome in outcomes))
    assert drafted.pop("none") == 0
    assert all(drafted.values()), "a method never guessed"
    # Drafts have the blocks that contexts leave: few are no room for deep ones.
    assert num_blocks == 16 or deepest["deployed"] == deepest["named"] == 4
    assert (deepest["short"], deepest["short ngram"]) == (2, 1)
    reported = {report.request_id for output in outputs for report in output.drafts}
    assert reported == {name for name in answers if not name.startswith("none")}


def head_state(deployed: Deployment, request_id: str) -> EagleState:
    sequence = deployed.engine._sequences[request_id]
    assert deployed.drafters.own is not None
    state = sequence.draft_states[deployed.drafters.own]
    assert isinstance(state, EagleState)
    return state


@pytest.mark.parametrize("method", ["ngram", "suffix", "none"])
def test_whoever_drafts_the_blocks_have_the_heads_kv(model: DraftedLM, head: Path, method: str) -> None:
    """A prefix hit on what such a request left: the head's history is whole, and it drafts at once."""
    deployed = deploy(model, SpeculationConfig("eagle3", head, **CHAIN), prefill_chunk=8)
    params = replace(GREEDY, max_tokens=20, ignore_eos=True)
    first = EngineRequest("a", tuple(prompt(18, 5)), params, speculation=RequestSpeculation(method))
    answers, _ = deployed.answers([first])
    context = (*first.prompt_token_ids, *answers["a"])
    deployed.engine.submit(EngineRequest("b", context, params))
    deployed.engine.step()
    # All but the block of the last token, whose KV was never written.
    assert deployed.engine.stats().cached_tokens_total == 36
    assert head_state(deployed, "b").first_key == 1
    deployed.engine.step()
    (outcome,) = deployed.planner.outcomes["b"]
    assert outcome.drafted == 4


def test_a_handover_brings_the_head_along_whoever_drafts(model: DraftedLM, head: Path) -> None:
    config = SpeculationConfig("eagle3", head, **CHAIN)
    here, there = deploy(model, config), deploy(model, config)
    params = replace(GREEDY, max_tokens=16, ignore_eos=True)
    request = EngineRequest("a", tuple(prompt(18, 5)), params, speculation=RequestSpeculation("ngram"))
    here.engine.submit_prefill(request)
    _, outputs = run_all(here.engine)
    (done,) = [done for output in outputs for done in output.prefills_done]
    (token,) = [token for output in outputs for token in output.tokens]
    sent = [block for output in outputs for ready in output.kv_ready for block in ready.new_block_ids]
    reservation = there.engine.reserve(request)
    assert reservation is not None
    there.pool[list(reservation.block_ids)] = here.pool[sent]
    there.engine.adopt("a", token.token_id, carried=done.carried)
    there.engine.step()
    there.engine.step()
    state, sequence = head_state(there, "a"), there.engine._sequences["a"]
    there.drafters.complete(sequence)
    assert (state.first_key, state.entries) == (1, sequence.num_tokens)


def test_a_deployment_without_a_method_drafts_for_those_who_ask_alone(model: DraftedLM) -> None:
    deployed = deploy(model, SpeculationConfig())
    assert deployed.drafters.methods == ("none", "ngram", "suffix")
    quiet, asking = (
        requests_of({"quiet": None}, 0.0)[:1],
        requests_of({"n": RequestSpeculation("ngram")}, 0.0),
    )
    plain, outputs = deployed.answers(quiet)
    assert deployed.engine.stats().speculation is None
    assert not any(output.drafts for output in outputs)
    again = [replace(quiet[0], request_id="again")]
    answers, outputs = deployed.answers([*again, *asking])
    assert answers["again"] == plain["quiet 1"] == answers["n 1"]
    reports = [report for output in outputs for report in output.drafts]
    assert {report.request_id for report in reports} == {"n 1", "n 2"}
    stats = deployed.engine.stats().speculation
    assert stats is not None
    assert stats.drafted_tokens == sum(report.drafted for report in reports) > 0
    assert stats.passes == len(reports)


def test_what_is_not_served_is_refused_by_name(model: DraftedLM, head: Path) -> None:
    request = EngineRequest("a", (1, 2, 3), GREEDY)

    def refused(engine: LLMEngine, method: str, served: str) -> None:
        asking = replace(request, speculation=RequestSpeculation(method))
        message = f"speculation.method is '{method}', but must be one of {served} here"
        for take in (engine.submit, engine.reserve):
            with pytest.raises(ValueError, match=message):
                take(asking)
        assert not engine.has_work()

    refused(deploy(model, SpeculationConfig()).engine, "eagle3", "none, ngram, suffix")
    with_head = SpeculationConfig("eagle3", head)
    refused(deploy(model, with_head).engine, "nope", "eagle3, ngram, suffix, none")
    refused(deploy(model, replace(with_head, per_request=False)).engine, "none", "eagle3")
    plain = without_speculator(model)
    refused(plain, "ngram", "none")
    # Nothing is drafted for a context that another worker decodes.
    plain.submit_prefill(replace(request, speculation=RequestSpeculation("ngram")))
    for count in (0, 64):
        asking = replace(request, request_id="b", speculation=RequestSpeculation("", count))
        message = f"speculation.num_speculative_tokens is {count}, but must be from 1 to 63"
        with pytest.raises(ValueError, match=message):
            plain.submit(asking)


def test_methods_without_a_model_are_those_that_need_none(model: DraftedLM) -> None:
    assert methods_without_model() == ("ngram", "suffix")
    config = EngineConfig(Path("unused"))
    for speculation in (SpeculationConfig(per_request=False), SpeculationConfig("ngram", per_request=False)):
        target = Target(model, torch.empty(0), replace(config, speculation=speculation), 100)
        assert make_drafters(target).methods == (speculation.method,)


@pytest.mark.parametrize("per_request", [True, False])
def test_engines_without_a_method_are_made_ready_for_those_that_requests_name(
    model: DraftedLM, tmp_path: Path, per_request: bool
) -> None:
    """As workers make them, with a planner that chooses."""
    speculation = SpeculationConfig(per_request=per_request)
    config = EngineConfig(Path("unused"), block_size=4, kernel_cache=tmp_path, speculation=speculation)
    pool = allocate_pool(model.config, 120, 4, torch.float32)
    speculator = make_speculator(model, pool, config)
    assert (speculator is not None) is per_request
    if speculator is not None:
        engine = LLMEngine(model, pool, config, ChainHasher("tiny", 4), speculator=speculator)
        for request in requests_of({"n": RequestSpeculation("ngram"), "none": None}, 0.0):
            engine.submit(request)
        answers, _ = run_all(engine)
        assert answers.of("n 1") == answers.of("none 1")
        assert engine.stats().speculation is not None
