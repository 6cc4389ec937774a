"""Prompt lookup and suffix decoding: what they propose for given texts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.api import EngineRequest
from engine.config import EngineConfig
from engine.sequence import Sequence
from engine.speculation.base import Drafter, Extent, Target, TargetPass
from engine.speculation.config import SpeculationConfig
from engine.speculation.registry import create_drafter
from engine.speculation.tree import DraftTree
from tests.engine.digest_model import DigestModel
from tests.engine.sampling_rows import GREEDY


def drafter(method: str, **settings: Any) -> Drafter:
    config = SpeculationConfig(method=method, **settings)
    target = Target(DigestModel(), torch.empty(0), EngineConfig(Path("unused")), 1000)
    made = create_drafter(config, target)
    assert made is not None
    return made


def sequence(text: str, prompt: int | None = None, salt: str = "", number: int = 0) -> Sequence:
    """Of bytes, of which `prompt` are the prompt; all but the last computed."""
    tokens = tuple(text.encode())
    prompt = len(tokens) if prompt is None else prompt
    request = EngineRequest(f"r{number}", tokens[:prompt], GREEDY, cache_salt=salt)
    made = Sequence(request, number, hold=False, submitted_s=0.0)
    made.token_ids += tokens[prompt:]
    made.num_computed = len(tokens) - 1
    return made


def take_note(made: Drafter, *sequences: Sequence) -> None:
    """As after a pass."""
    made.extend(TargetPass(tuple(Extent(each, each.num_computed, (0,), False) for each in sequences), None))


def say(made: Drafter, answer: str, salt: str = "", number: int = 0) -> Sequence:
    """A sequence that gets an answer, two tokens a pass."""
    speaking = sequence("?" + answer[0], prompt=1, salt=salt, number=number)
    take_note(made, speaking)
    for start in range(1, len(answer), 2):
        speaking.token_ids += answer[start : start + 2].encode()
        take_note(made, speaking)
    return speaking


def proposal(made: Drafter, text: str, count: int = 10, **kind: Any) -> list[str]:
    """Each path of the tree that is proposed for a text, in the order of the drafts."""
    (tree,) = made.propose([sequence(text, **kind)], [count])
    return paths(tree)


def paths(tree: DraftTree | None) -> list[str]:
    if tree is None:
        return []
    found = [""]
    for token_id, parent in zip(tree.token_ids, tree.parents, strict=True):
        found.append(found[parent] + chr(token_id))
    return found[1:]


class TestPromptLookup:
    def test_a_chain_of_what_followed(self) -> None:
        made = drafter("ngram", num_speculative_tokens=4)
        assert proposal(made, "the cat sat. the c")[-1] == "at s"
        assert proposal(made, "the cat sat. the c", count=2)[-1] == "at"
        assert proposal(made, "abcdefgh") == []

    def test_sizes_are_honoured(self) -> None:
        """A longer suffix wins over a later one, up to the longest that is looked at."""
        text = "xabcd! yabc? xabc"
        assert proposal(drafter("ngram", prompt_lookup_max=4, num_speculative_tokens=1), text) == ["d"]
        assert proposal(drafter("ngram", prompt_lookup_max=3, num_speculative_tokens=1), text) == ["?"]
        assert proposal(drafter("ngram", prompt_lookup_max=9, prompt_lookup_min=5), text) == []

    def test_the_answer_is_looked_up_too_as_it_grows(self) -> None:
        made = drafter("ngram", num_speculative_tokens=3)
        growing = sequence("12345", prompt=1)
        assert made.propose([growing], [3]) == [None]
        growing.token_ids += b"..1234"
        (tree,) = made.propose([growing], [3])
        assert paths(tree)[-1] == "5.."
        growing.token_ids.append(ord("#"))
        assert made.propose([growing], [3]) == [None]

    def test_after_a_preemption_it_goes_on(self) -> None:
        made = drafter("ngram", num_speculative_tokens=3)
        preempted = sequence("12345..1234")
        (before,) = made.propose([preempted], [3])
        preempted.forget_progress()
        assert made.propose([preempted], [3]) == [before]


class TestSuffixDecoding:
    def test_the_likeliest_follower_is_first(self) -> None:
        text = " abx abx aby aby aby abz ab"
        assert proposal(drafter("suffix", num_speculative_tokens=1), text) == ["y"]
        assert proposal(drafter("suffix", num_speculative_tokens=1, eagle_topk=2), text) == ["y", "x"]
        assert proposal(drafter("suffix", num_speculative_tokens=1, eagle_topk=9), text) == ["y", "x", "z"]

    def test_a_suffix_drafts_no_more_than_its_length(self) -> None:
        made = drafter("suffix", num_speculative_tokens=10)
        assert proposal(made, "0123456789abc#456789")[-1] == "abc#45"
        assert proposal(made, "0123456789abc#9")[-1] == "a"

    def test_trees_keep_their_bounds(self) -> None:
        text = "".join(f"key{letter}{digit} " for letter in "abc" for digit in "123") + "key"
        for width, most, depth in ((1, 64, 3), (2, 6, 2), (3, 64, 2), (2, 64, 1)):
            made = drafter("suffix", num_speculative_tokens=depth, eagle_topk=width, num_draft_tokens=most)
            (tree,) = made.propose([sequence(text)], [40])
            assert tree is not None
            assert len(tree.token_ids) <= most - 1
            assert max(tree.depths) <= depth
            assert max(map(len, tree.children)) <= width

    def test_unlikely_drafts_are_left_out(self) -> None:
        """The text's end was followed by 12 different tokens: none has a probability of 0.1."""
        made = drafter("suffix", num_speculative_tokens=1, eagle_topk=20, num_draft_tokens=60)
        assert proposal(made, "".join(f"#{letter}" for letter in "abcdefghijkl") + "#") == []

    def test_past_answers_of_the_same_tenant_are_known_and_of_no_other(self) -> None:
        made = drafter("suffix", num_speculative_tokens=8)
        say(made, "the answer is 42.", salt="a")
        assert proposal(made, "!answer", salt="a")[-1] == " is 42"
        assert proposal(made, "!answer", salt="b") == []
        assert proposal(made, "!answer") == []

    def test_prompts_are_known_to_their_own_sequence_alone(self) -> None:
        made = drafter("suffix", num_speculative_tokens=8)
        take_note(made, sequence("the secret is 42.", salt="a"))
        assert proposal(made, "!secr", salt="a") == []

    def test_what_was_answered_is_stored_once(self) -> None:
        """Also over a preemption: counts would be wrong."""
        made = drafter("suffix", num_speculative_tokens=1, eagle_topk=2)
        say(made, "xxabq")
        say(made, "yyabq", number=1)
        growing = say(made, "abr", number=2)
        for _ in range(3):
            growing.forget_progress()
            growing.token_ids += b"."
            take_note(made, growing)
        assert proposal(made, "$ab", count=1) == ["q"]

    def test_a_held_context_is_not_taken_in(self) -> None:
        made = drafter("suffix")
        held = sequence("aaaa")
        held.hold = True
        take_note(made, held)
        assert not held.draft_states

    def test_a_long_prompt_is_taken_in_over_several_steps(self) -> None:
        made = drafter("suffix", num_speculative_tokens=4)
        long = sequence("abcdefgh" * 1100)
        calls = 1
        while made.propose([long], [4]) == [None]:
            calls += 1
        assert 2 <= calls <= 4


def passes(made: Drafter, prompt: str, answer: str, drafts: int) -> int:
    """Passes of a target that gives this answer, whatever is proposed to it."""
    growing = sequence(prompt)
    truth = list((prompt + answer).encode())
    count = 0
    while len(growing.token_ids) < len(truth):
        (tree,) = made.propose([growing], [drafts])
        node: int | None = 0
        while node is not None and len(growing.token_ids) < len(truth):
            token_id = truth[len(growing.token_ids)]
            growing.token_ids.append(token_id)
            node = None if tree is None else tree.child(node, token_id)
        growing.num_computed = len(growing.token_ids) - 1
        take_note(made, growing)
        count += 1
    return count


@pytest.mark.parametrize(
    ("method", "drafts", "fewest", "most"),
    [("ngram", 4, 21, 23), ("suffix", 4, 21, 25), ("ngram", 1, 50, 52)],
)
def test_a_copied_text_takes_one_pass_for_each_full_chain(
    method: str, drafts: int, fewest: int, most: int
) -> None:
    """Acceptance is held to its value too: wrong drafts cost time, and nothing else would show them."""
    text = "".join(map(chr, range(20, 120)))
    assert fewest <= passes(drafter(method, num_speculative_tokens=drafts), text, text, drafts) <= most


def test_an_answer_that_was_given_before_is_drafted_from_it() -> None:
    text = "".join(map(chr, range(20, 120)))
    made = drafter("suffix", num_speculative_tokens=9)
    assert passes(made, "?", text, 9) == 100
    assert passes(made, "!", text, 9) <= 14


@pytest.mark.parametrize(
    ("method", "settings", "message"),
    [
        ("ngram", {"prompt_lookup_min": 0}, "prompt_lookup_min is 0, but must be from 1 to 5"),
        ("ngram", {"prompt_lookup_min": 6}, "prompt_lookup_min is 6, but must be from 1 to 5"),
        ("ngram", {"prompt_lookup_max": 65}, "prompt_lookup_max is 65, but must be from 1 to 64"),
        ("ngram", {"eagle_topk": 2}, "eagle_topk is 2, but must be 1: method 'ngram' drafts chains"),
        ("suffix", {"eagle_topk": 0}, "eagle_topk is 0, but must be from 1 to 63"),
        ("suffix", {"num_draft_tokens": 65}, "num_draft_tokens is 65, but must be from 2 to 64"),
        ("suffix", {"model": Path("m")}, "model is m, but method 'suffix' needs none"),
        ("magic", {}, "method is 'magic', but must be one of none, .*ngram.*suffix"),
    ],
)
def test_wrong_settings_are_named(method: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        drafter(method, **settings)


def test_no_speculation_is_no_drafter() -> None:
    config = replace(SpeculationConfig(), method="none")
    target = Target(DigestModel(), torch.empty(0), EngineConfig(Path("unused")), 1000)
    assert create_drafter(config, target) is None
