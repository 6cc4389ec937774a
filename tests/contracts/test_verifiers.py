"""What every verification rule must do, for each file in engine/speculation/verification."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from engine.speculation.verification.registry import rules as verification_rules
from tests.engine.sampling_rows import GREEDY
from tests.engine.speculation import small_drafters
from tests.engine.speculation.small_target import (
    Draft,
    SmallTarget,
    check_distribution,
    generate,
    outcomes,
)

RANDOM = replace(GREEDY, temperature=1.0, max_tokens=2)
RULES = sorted(verification_rules())
SAMPLES = 2500
PARAMS: dict[str, dict[str, Any]] = {
    "plain": {"max_tokens": 3},
    "truncated": {"temperature": 1.4, "top_k": 5, "top_p": 0.85, "max_tokens": 3},
    "min_p_and_typical": {"temperature": 0.8, "min_p": 0.05, "typical_p": 0.9},
    "edited": {
        "logit_bias": ((3, 1.5), (4, -1.0)),
        "bad_words": ((5,), (3, 1)),
        "min_tokens": 1,
        "repetition_penalty": 1.3,
        "frequency_penalty": 0.6,
        "presence_penalty": -0.4,
        "top_k": 4,
        "max_tokens": 3,
    },
}


@pytest.fixture(params=RULES)
def rule(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("draft", small_drafters.ALL, ids=lambda draft: draft.__name__)
@pytest.mark.parametrize("changes", PARAMS.values(), ids=PARAMS)
def test_answers_have_the_targets_distribution(rule: str, draft: Draft, changes: dict[str, Any]) -> None:
    """Whole answers, so that what follows accepted drafts, refused ones and none is all in it."""
    params = replace(RANDOM, **changes)
    target = SmallTarget()
    rows = [replace(params, seed=seed) for seed in range(SAMPLES)]
    answers, _ = generate(rule, target, draft, rows)
    check_distribution(answers, dict(outcomes(target, params)))
