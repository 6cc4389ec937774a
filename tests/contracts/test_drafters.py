"""What every draft method must do, for each file in engine/speculation/drafters."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.api import EngineRequest, SamplingParams
from engine.config import EngineConfig
from engine.core import LLMEngine
from engine.models.base import DraftedLM
from engine.models.loader import load_model
from engine.speculation.base import Target
from engine.speculation.config import SpeculationConfig
from engine.speculation.registry import create_drafter, methods, methods_without_model
from tests.engine.digest_model import run_all
from tests.support.eagle_heads import (
    HeadShape,
    flat_config,
    layers_config,
    make_eagle1,
    make_eagle3,
    write_head,
)
from tests.support.engines import engine_over
from tests.support.medusa_heads import make_medusa, write_medusa
from tests.support.speculation import speculating
from tests.support.tiny_models import tiny_llama

# Shapes of drafts, and how many are asked for.
SHAPES: dict[str, tuple[dict[str, Any], int]] = {
    "chain": ({"num_speculative_tokens": 4}, 4),
    "longer_than_asked": ({"num_speculative_tokens": 8}, 2),
    "one": ({"num_speculative_tokens": 1}, 8),
    "tree": ({"num_speculative_tokens": 4, "eagle_topk": 3, "num_draft_tokens": 12}, 11),
}
Needs = dict[str, dict[str, Any]]
AFTER_LOOKUP = " after lookup"
"""Ends the name of a method with a model that comes after prompt lookup."""
METHODS = (
    *methods(),
    *(f"{method}{AFTER_LOOKUP}" for method in methods() if method not in methods_without_model()),
)


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def model(model_dir: Path) -> DraftedLM:
    torch.set_num_threads(1)
    return load_model(model_dir)


@pytest.fixture(scope="module")
def needs(model: DraftedLM, tmp_path_factory: pytest.TempPathFactory) -> Needs:
    """What a method needs beside the shape."""
    folder, shape = tmp_path_factory.mktemp("heads"), HeadShape(model.config, draft_vocab=200)
    whole = replace(shape, draft_vocab=0)
    alone: Needs = {
        "draft_model": {"model": tiny_llama(folder / "draft", seed=1, layers=1)},
        # Random heads are sure of nothing.
        "eagle": {
            "model": write_head(folder / "eagle", layers_config(whole), make_eagle1(whole)),
            "draft_p_min": 0.0,
        },
        "eagle3": {
            "model": write_head(folder / "eagle3", flat_config(shape), make_eagle3(shape)),
            "draft_p_min": 0.0,
        },
        "medusa": {"model": write_medusa(folder / "medusa", make_medusa(model.config, 8))},
        "ngram": {"prompt_lookup_min": 1},
        "suffix": {},
    }
    return alone | {f"{each}{AFTER_LOOKUP}": {**own, "lookup_first": True} for each, own in alone.items()}


@pytest.fixture(params=METHODS)
def method(request: pytest.FixtureRequest) -> str:
    return str(request.param)


# Methods that draft chains alone, and refuse to be asked for trees.
CHAINS = ("draft_model", "ngram")
SHAPED = [
    (each, shape) for each in METHODS for shape in SHAPES if each.split()[0] not in CHAINS or shape != "tree"
]


def config_of(method: str, needs: Needs, shape: str = "chain") -> SpeculationConfig:
    assert method in needs, "say what the method needs"
    return SpeculationConfig(method=method.split()[0], **SHAPES[shape][0], **needs[method])


def requests(count: int = 12, **changes: Any) -> list[EngineRequest]:
    """Prompts of words that come again and again; half of them greedy. Four tenants."""
    made = []
    for number in range(count):
        draw = random.Random(number)
        words = [tuple(draw.choices(range(256), k=draw.randint(2, 6))) for _ in range(4)]
        prompt = sum(draw.choices(words, k=draw.randint(2, 12)), ())
        params = SamplingParams(
            temperature=(0.0, 0.6)[number % 2], top_p=0.9, top_k=0, seed=number, choice=0, max_tokens=40
        )
        request = EngineRequest(f"r{number}", prompt, replace(params, **changes), cache_salt=f"t{number % 4}")
        made.append(request)
    return made


def answers_of(engine: LLMEngine, asked: list[EngineRequest]) -> dict[str, Any]:
    for request in asked:
        engine.submit(request)
    answers, outputs = run_all(engine)
    assert not [failure for output in outputs for failure in output.failures]
    return {request.request_id: answers.of(request.request_id) for request in asked}


@pytest.mark.parametrize(("method", "shape"), SHAPED)
def test_answers_are_those_without_drafts(
    method: str, needs: Needs, shape: str, model: DraftedLM, model_dir: Path
) -> None:
    """Greedy and drawn, in one batch, over chunked prompts and shared prefixes; every proposal is checked."""
    plain, _ = engine_over(model)
    # Where few tokens are allowed, what came before had several followers.
    asked = requests(allowed_token_ids=frozenset(range(5)) if shape == "tree" else frozenset())
    expected = answers_of(plain, asked)
    settings = {"prefill_chunk": 16, "max_batched_tokens": 48}
    config = config_of(method, needs, shape)
    engine, watched = speculating(model, config, SHAPES[shape][1], model_dir=model_dir, **settings)
    assert answers_of(engine, asked) == expected
    assert watched.proposed, "nothing was ever guessed"
    assert (watched.branched > 0) == (shape == "tree")
    # Again, with prefixes in the cache, and what was answered known.
    again = [replace(request, request_id=request.request_id + "again") for request in asked]
    assert list(answers_of(engine, again).values()) == list(expected.values())


def test_penalties_bias_and_log_probabilities_hold(
    method: str, needs: Needs, model: DraftedLM, model_dir: Path
) -> None:
    changes = {
        "frequency_penalty": 0.4,
        "logit_bias": ((7, 2.0),),
        "bad_words": ((9,), (7, 7)),
        "logprobs": 2,
    }
    asked = requests(6, **changes)
    plain, _ = engine_over(model)
    engine, _ = speculating(model, config_of(method, needs), 4, model_dir=model_dir)
    assert answers_of(engine, asked) == answers_of(plain, asked)


@pytest.mark.parametrize("swap_memory_bytes", [0, 1 << 22])
def test_preemptions_are_survived_and_nothing_is_kept(
    method: str, needs: Needs, model: DraftedLM, model_dir: Path, swap_memory_bytes: int
) -> None:
    """A pool that does not hold the batch; a sequence that is cancelled halfway."""
    plain, _ = engine_over(model)
    asked = requests()
    expected = answers_of(plain, asked)
    settings = {"num_blocks": 14, "block_size": 8, "swap_memory_bytes": swap_memory_bytes}
    engine, watched = speculating(model, config_of(method, needs), 4, model_dir=model_dir, **settings)
    engine.submit(replace(asked[0], request_id="cancelled"))
    for _ in range(5):
        engine.step()
    engine.cancel("cancelled")
    assert answers_of(engine, asked) == expected
    assert engine.stats().preemptions_total > 0
    assert watched.proposed
    del engine
    assert watched.states_alive() == 0, "a draft state outlived its sequence"


@pytest.mark.parametrize("count", [0, 64])
def test_a_depth_out_of_bounds_is_refused_by_name(
    method: str, needs: Needs, model: DraftedLM, count: int
) -> None:
    config = replace(config_of(method, needs), num_speculative_tokens=count)
    target = Target(model, torch.empty(0), EngineConfig(Path("unused")), 100)
    message = f"num_speculative_tokens is {count}, but must be from 1 to 63"
    with pytest.raises(ValueError, match=message):
        create_drafter(config, target)
