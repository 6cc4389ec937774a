"""What every verification rule must do, for each file in engine/speculation/verification."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from engine.api import FinishReason, SamplingParams
from engine.sampling.sampler import Sampler
from engine.speculation.tree import DraftTree
from engine.speculation.verification.base import Bounds, Failure, FailureCause, Pending, Verified
from engine.speculation.verification.registry import create_verifier
from engine.speculation.verification.registry import rules as verification_rules
from tests.engine.sampling_rows import GREEDY
from tests.engine.speculation import small_drafters
from tests.engine.speculation.small_target import (
    EOS,
    EOS_IDS,
    PROMPT,
    Draft,
    SmallTarget,
    check_distribution,
    generate,
    outcomes,
    rules_for,
)

RANDOM = replace(GREEDY, temperature=1.0, max_tokens=3)
BOUNDS = Bounds(EOS_IDS, 1000)
LOSSLESS = [name for name in verification_rules() if create_verifier(name, Sampler(), BOUNDS).lossless]
SAMPLES = 1500
PARAMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "truncated": {"temperature": 1.4, "top_k": 5, "top_p": 0.9, "min_p": 0.05, "typical_p": 0.95},
    "edited": {
        "logit_bias": ((3, 1.5), (4, -1.0)),
        "bad_words": ((5,), (3, 1)),
        "min_tokens": 1,
        "repetition_penalty": 1.3,
        "frequency_penalty": 0.6,
        "presence_penalty": -0.4,
        "top_k": 4,
    },
}
TARGET = SmallTarget()

Verify = Callable[..., Verified]


@pytest.fixture(params=verification_rules())
def rule(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def verify(rule: str) -> Verify:
    """One sequence through one pass."""

    def run(
        params: SamplingParams, tree: DraftTree | None, *, logits: torch.Tensor | None = None, **bounds: Any
    ) -> Verified:
        rules = rules_for(params, TARGET.vocab_size)
        rows = TARGET.rows(PROMPT, tree) if logits is None else logits
        verifier = create_verifier(rule, Sampler(), replace(BOUNDS, **bounds))
        (verified,) = verifier.verify(rows, [Pending(rules, len(PROMPT), tree, 0)])
        assert rules.position == len(verified.token_ids), "the rules know the tokens and no others"
        return verified

    return run


def greedy_answer(count: int) -> tuple[int, ...]:
    tokens = list(PROMPT)
    for _ in range(count):
        tokens.append(int(TARGET.logits(tokens).argmax()))
    return tuple(tokens[len(PROMPT) :])


@pytest.mark.parametrize("draft", small_drafters.ALL, ids=lambda draft: draft.__name__)
@pytest.mark.parametrize("changes", PARAMS.values(), ids=PARAMS)
@pytest.mark.parametrize("lossless", LOSSLESS)
def test_answers_have_the_targets_distribution(lossless: str, draft: Draft, changes: dict[str, Any]) -> None:
    """Whole answers, so that what follows accepted drafts, refused ones and none is all in it."""
    params = replace(RANDOM, **changes)
    rows = [replace(params, seed=seed) for seed in range(SAMPLES)]
    answers, _ = generate(lossless, TARGET, draft, rows)
    check_distribution(answers, dict(outcomes(TARGET, params)))


@pytest.mark.parametrize("draft", small_drafters.ALL, ids=lambda draft: draft.__name__)
@pytest.mark.parametrize("changes", PARAMS.values(), ids=PARAMS)
def test_greedy_answers_do_not_depend_on_drafts(rule: str, draft: Draft, changes: dict[str, Any]) -> None:
    params = replace(GREEDY, **{**changes, "temperature": 0.0, "max_tokens": 12, "ignore_eos": True})
    reported = replace(params, logprobs=2)
    ((expected, also), _) = generate("coupled", TARGET, small_drafters.none, [params, reported])
    assert expected == also
    answers, _ = generate(rule, TARGET, draft, [replace(params, seed=n) for n in range(5)] + [reported])
    assert set(answers) == {expected}


@pytest.mark.parametrize("draft", small_drafters.ALL, ids=lambda draft: draft.__name__)
def test_a_seed_of_its_own_tells_the_tokens_whatever_is_drafted(rule: str, draft: Draft) -> None:
    """Beside requests without one, which follow the rule as if they were alone."""
    params = [replace(RANDOM, seed=seed, max_tokens=6, own_seed=seed % 2 == 0) for seed in range(200)]
    told, _ = generate("coupled", TARGET, small_drafters.none, params)
    alone, _ = generate(rule, TARGET, draft, [own for own in params if not own.own_seed])
    answers, _ = generate(rule, TARGET, draft, params)
    assert answers[::2] == told[::2]
    assert answers[1::2] == alone


def test_right_drafts_are_all_accepted(verify: Verify) -> None:
    path = greedy_answer(4)
    params = replace(GREEDY, ignore_eos=True)
    verified = verify(params, DraftTree.chain(path[:3]))
    assert (verified.path, verified.token_ids) == ((1, 2, 3), path)
    assert verified.finish_reason is verified.failure is None


def test_a_tree_is_followed_down_the_right_branch(verify: Verify) -> None:
    first, second, third = greedy_answer(3)
    wrong = [token_id for token_id in range(TARGET.vocab_size) if token_id not in (first, second)]
    tree = DraftTree((wrong[0], first, second, wrong[1], second), (0, 0, 1, 2, 2))
    verified = verify(replace(GREEDY, ignore_eos=True), tree)
    assert (verified.path, verified.token_ids) == ((2, 5), (first, second, third))


def test_one_token_comes_where_there_are_no_drafts_or_wrong_ones(verify: Verify) -> None:
    (best,) = greedy_answer(1)
    for tree in (None, DraftTree.chain(((best + 1) % TARGET.vocab_size, 1))):
        verified = verify(GREEDY, tree)
        assert (verified.path, verified.token_ids) == ((), (best,))


@pytest.mark.parametrize("stop", ["stop_token_ids", "eos", "max_tokens", "max_model_len"])
@pytest.mark.parametrize("temperature", [0.0, 1e-4])
def test_nothing_comes_behind_the_end(verify: Verify, stop: str, temperature: float) -> None:
    """At the second of three drafts. 1e-4 is a draw whose outcome is certain."""
    path = greedy_answer(3)
    assert path[1] not in (path[0], EOS)
    params = replace(GREEDY, temperature=temperature, ignore_eos=True)
    bounds: dict[str, Any] = {}
    if stop == "stop_token_ids":
        params = replace(params, stop_token_ids=frozenset({path[1]}))
    elif stop == "eos":
        params = replace(params, ignore_eos=False)
        bounds = {"eos_token_ids": frozenset({path[1]})}
    elif stop == "max_tokens":
        params = replace(params, max_tokens=2)
    else:
        bounds = {"max_model_len": len(PROMPT) + 2}
    verified = verify(params, DraftTree.chain(path), **bounds)
    assert (verified.path, verified.token_ids) == ((1, 2), path[:2])
    expected = FinishReason.STOP if stop in ("stop_token_ids", "eos") else FinishReason.LENGTH
    assert verified.finish_reason is expected


def test_a_correction_may_be_the_end(verify: Verify) -> None:
    path = greedy_answer(2)
    params = replace(GREEDY, ignore_eos=True, stop_token_ids=frozenset({path[1]}))
    verified = verify(params, DraftTree.chain((path[0], path[0])))
    assert (verified.path, verified.token_ids) == ((1,), path)
    assert verified.finish_reason is FinishReason.STOP


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_log_probabilities_are_the_models_at_each_position(verify: Verify, temperature: float) -> None:
    """For accepted drafts, corrections and the bonus; of the raw logits, whatever bias there is."""
    for seed in range(30):
        params = replace(
            GREEDY, temperature=temperature, logprobs=2, seed=seed, ignore_eos=True, logit_bias=((2, 1.0),)
        )
        verified = verify(params, DraftTree((2, 3, 2, 4), (0, 0, 1, 3)))
        assert verified.logprobs is not None
        tokens = list(PROMPT)
        for token_id, report in zip(verified.token_ids, verified.logprobs, strict=True):
            logprobs = TARGET.logits(tokens).log_softmax(dim=-1)
            assert report.logprob == pytest.approx(float(logprobs[token_id]), abs=1e-5)
            assert report.rank == 1 + int((logprobs > logprobs[token_id]).sum())
            assert [token for token, _ in report.top] == logprobs.topk(2).indices.tolist()
            tokens.append(token_id)
    assert verify(GREEDY, None).logprobs is None


@pytest.mark.parametrize("temperature", [0.0, 1e-4])
def test_what_is_not_a_number_fails_only_where_it_is_reached(verify: Verify, temperature: float) -> None:
    path = greedy_answer(3)
    params = replace(GREEDY, temperature=temperature, ignore_eos=True)
    other = (path[0] + 1) % TARGET.vocab_size
    tree = DraftTree((path[0], other, path[1]), (0, 0, 1))
    rows = TARGET.rows(PROMPT, tree)
    rows[2] = torch.nan
    assert verify(params, tree, logits=rows).token_ids == path
    rows[3, 0] = torch.inf
    verified = verify(params, tree, logits=rows)
    assert (verified.path, verified.token_ids) == ((1, 3), path[:2])
    assert verified.failure == Failure(FailureCause.NOT_NUMBERS)
    rows[0] = torch.nan
    verified = verify(params, tree, logits=rows)
    assert (verified.path, verified.token_ids) == ((), ())
    assert verified.failure == Failure(FailureCause.NOT_NUMBERS)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_sequence_that_nothing_is_left_for_keeps_what_it_has(verify: Verify, temperature: float) -> None:
    params = replace(
        GREEDY, temperature=temperature, allowed_token_ids=frozenset({3}), bad_words=((3, 3, 3),)
    )
    verified = verify(params, DraftTree.chain((3, 3, 3)))
    assert (verified.path, verified.token_ids) == ((1, 2), (3, 3))
    assert verified.failure == Failure(FailureCause.STUCK)


def test_a_sequence_gets_the_same_whatever_stands_beside_it(rule: str) -> None:
    """Other kinds of sequences in other orders, logits among rows of nobody."""
    drafts = [
        draft for draft in small_drafters.ALL if draft not in (small_drafters.none, small_drafters.equal)
    ]
    kinds = [
        GREEDY,
        replace(GREEDY, logprobs=1),
        RANDOM,
        *(replace(RANDOM, **own) for own in PARAMS.values()),
    ]
    params = [replace(kinds[n % len(kinds)], seed=n, max_tokens=4) for n in range(24)]
    alone = [generate(rule, TARGET, drafts[n % len(drafts)], [own])[0][0] for n, own in enumerate(params)]

    def mixed(target: SmallTarget, tokens: Any, rules: Any, random_: Any) -> DraftTree | None:
        return drafts[rules.params.seed % len(drafts)](target, tokens, rules, random_)

    together, _ = generate(rule, TARGET, mixed, params)
    assert together == alone
    backwards, _ = generate(rule, TARGET, mixed, params[::-1])
    assert backwards[::-1] == alone


def test_unknown_names_are_an_error_that_lists_the_known(rule: str) -> None:
    with pytest.raises(ValueError, match=f"verification is 'fastest', but must be one of .*{rule}"):
        create_verifier("fastest", Sampler(), BOUNDS)
