"""The walk down trees: what the rules see, what a failure leaves, how often the rule is asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from engine.api import GrammarKind, GrammarSpec
from engine.grammar.guidance import GuidanceCompiler
from engine.sampling.rules import TokenRules
from engine.sampling.sampler import Sampled, Sampler
from engine.speculation.tree import DraftTree
from engine.speculation.verification import coupled
from engine.speculation.verification.base import Bounds, FailureCause, Pending, Place
from engine.speculation.verification.registry import create_verifier
from engine.speculation.verification.verifier import Verifier
from tests.engine.sampling_rows import GREEDY
from tests.engine.speculation.small_target import EOS_IDS, PROMPT, SmallTarget, rules_for
from tests.support.tiny_tokenizer import IM_END, VOCAB_SIZE, text_folder

BOUNDS = Bounds(EOS_IDS, 1000)
TARGET = SmallTarget()
PENALISED = replace(GREEDY, temperature=1.0, frequency_penalty=0.5, bad_words=((1, 2),), ignore_eos=True)


class FirstDraft:
    """A rule that accepts every first draft, whatever the target says, and counts how often it is asked."""

    lossless = False

    def __init__(self) -> None:
        self.asked: list[int] = []

    def choose(self, logits: torch.Tensor, places: Sequence[Place]) -> Sampled:
        self.asked.append(len(places))
        return Sampled([place.drafts[0][0] if place.drafts else 0 for place in places])


@pytest.fixture(scope="module")
def grammars(tmp_path_factory: pytest.TempPathFactory) -> GuidanceCompiler:
    folder = text_folder(tmp_path_factory.mktemp("text"))
    return GuidanceCompiler(folder / "tokenizer.json", VOCAB_SIZE, frozenset({IM_END}))


def under(grammars: GuidanceCompiler, pattern: str, temperature: float = 0.0) -> TokenRules:
    spec = GrammarSpec(GrammarKind.REGEX, pattern)
    params = replace(GREEDY, temperature=temperature, grammar=spec, max_tokens=100)
    return TokenRules(params, PROMPT, (), frozenset({IM_END}), VOCAB_SIZE, grammars.compile(spec).start())


def test_the_rule_is_asked_once_for_each_depth() -> None:
    """For all sequences that are still under way; for plain ones at once for all their nodes."""
    chooser = FirstDraft()
    logits = torch.zeros(20, TARGET.vocab_size)
    trees = [None, DraftTree.chain((1, 2, 3)), DraftTree.chain((4,)), DraftTree((1, 2, 3), (0, 0, 1))]
    plain = replace(GREEDY, ignore_eos=True)
    kinds = [PENALISED, PENALISED, plain, plain]
    row = 0
    pending = []
    for params, tree in zip(kinds, trees, strict=True):
        pending.append(Pending(rules_for(params, TARGET.vocab_size), len(PROMPT), tree, row))
        row += tree.num_nodes if tree else 1
    verified = Verifier(chooser, BOUNDS).verify(logits, pending)
    assert chooser.asked == [1 + 1 + 2 + 4, 1, 1, 1]
    assert [each.path for each in verified] == [(), (1, 2, 3), (1,), (1, 3)]
    assert not create_verifier("coupled", Sampler(), BOUNDS).verify(logits, [])


def test_whatever_is_raised_leaves_the_rules_as_they_were() -> None:
    """The second sequence has no logits for its second node: found out when both have tokens already."""
    tree = DraftTree.chain((3, 3, 3))
    rules = [
        rules_for(replace(PENALISED, allowed_token_ids=frozenset({3})), TARGET.vocab_size) for _ in range(2)
    ]
    untouched = rules_for(PENALISED, TARGET.vocab_size)
    rows = torch.cat([TARGET.rows(PROMPT, tree), TARGET.rows(PROMPT, None)])
    pending = [Pending(own, len(PROMPT), tree, row) for own, row in zip(rules, (0, 4), strict=True)]
    for name in ("coupled", "standard"):
        with pytest.raises(IndexError):
            create_verifier(name, Sampler(), BOUNDS).verify(rows, pending)
        for own in rules:
            assert own.position == 0
            assert own.forbidden_ids() == untouched.forbidden_ids()
            assert own.counts is not None
            assert not own.counts.counts.any()


def test_a_token_that_the_grammar_refuses_fails_its_sequence_there(grammars: GuidanceCompiler) -> None:
    rules = under(grammars, "abcd")
    tree = DraftTree.chain(tuple(b"abxd"))
    (verified,) = Verifier(FirstDraft(), Bounds(frozenset({IM_END}), 1000)).verify(
        torch.zeros(5, VOCAB_SIZE), [Pending(rules, len(PROMPT), tree, 0)]
    )
    assert (verified.path, verified.token_ids) == ((1, 2), tuple(b"ab"))
    assert verified.failure is not None
    assert verified.failure.cause is FailureCause.GRAMMAR
    assert "cannot follow" in verified.failure.message
    assert rules.position == 2
    rules.advance(ord("c"))


@pytest.mark.parametrize("name", ["coupled", "standard"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_grammars_hold_at_every_position(grammars: GuidanceCompiler, name: str, temperature: float) -> None:
    """The logits like what the grammar forbids best; drafts go past the answer's end and beside it."""
    bounds = Bounds(frozenset({IM_END}), 1000)
    for drafts, path in ((b"abcd", (1, 2, 3)), (b"abcde", (1, 2, 3)), (b"abd", (1, 2)), (b"xbc", ())):
        rules = under(grammars, "abc|ab", temperature)
        tree = DraftTree.chain(tuple(drafts))
        logits = torch.zeros(len(drafts) + 1, VOCAB_SIZE)
        logits[:, ord("z")] = 9.0
        logits[2, ord("c")] = 40.0
        verifier = create_verifier(name, Sampler(grammars), bounds)
        (verified,) = verifier.verify(logits, [Pending(rules, len(PROMPT), tree, 0)])
        assert verified.path == path
        assert bytes(verified.token_ids) == b"abc"[: len(path) + 1]
        assert (verified.finish_reason is not None) == (len(path) + 1 >= 3)


def test_answers_that_fill_their_grammar_end_with_an_eos_draft_or_without(grammars: GuidanceCompiler) -> None:
    rules = under(grammars, "ab")
    tree = DraftTree.chain((*b"ab", IM_END))
    verifier = Verifier(coupled.create(Sampler(grammars)), Bounds(frozenset({IM_END}), 1000))
    (verified,) = verifier.verify(torch.zeros(4, VOCAB_SIZE), [Pending(rules, len(PROMPT), tree, 0)])
    assert bytes(verified.token_ids) == b"ab"
    assert verified.finish_reason is not None
