from __future__ import annotations

import json
from collections import Counter
from itertools import islice
from pathlib import Path
from random import Random

import pytest
import torch

from training.files import PromptFileError, read_prompts
from training.prompts import code_tasks
from training.prompts.filling import fill, templates
from training.prompts.mixture import Message, builtin_prompts
from training.vocabulary import choose_vocabulary


def test_prompts_are_many_and_the_same_for_the_same_seed() -> None:
    prompts = list(islice(builtin_prompts(5), 2000))
    assert prompts == list(islice(builtin_prompts(5), 2000))
    assert len({prompt.messages for prompt in prompts}) == 2000
    assert prompts[0] != next(builtin_prompts(6))
    kinds = Counter(prompt.kind for prompt in prompts)
    assert set(kinds) == {"chat", "code", "maths", "summarising"}
    assert min(kinds.values()) > 100
    for prompt in prompts:
        content = prompt.messages[-1].content
        assert prompt.messages[-1].role == "user"
        # Nothing of the templates is left over.
        assert not any(slot in content for slot in ("{topic", "{name", "{num", "{place"))


@pytest.mark.parametrize("name", ["questions", "maths", "asides", "programs", "tasks", "news"])
def test_every_template_can_be_filled(name: str) -> None:
    for line in templates(name):
        assert "{" not in fill(line, Random(0))


def test_a_slot_named_twice_is_filled_alike() -> None:
    first, second, other = fill("{num} {num} {num2}", Random(3)).split()
    assert first == second
    assert fill("{num} {num2}", Random(3)).split() == [first, other]


@pytest.mark.parametrize("group", code_tasks.GROUPS, ids=lambda group: group[0].argument)
def test_tasks_compute_what_they_say_they_return(group: tuple[code_tasks.Task, ...]) -> None:
    types = {
        "int": int,
        "list": list,
        "bool": bool,
        "str": str,
        "dict": dict,
        "float": (int, float),
        "object": object,
    }
    arguments = {
        "numbers": [[4, -2, 7], [12, 30, 9, 9]],
        "words": [["apple", "book"], ["lantern", "oo"]],
        "text": ["abc", "two words"],
        "number": [2, 17],
    }
    for task in group:
        for argument in arguments[task.argument]:
            assert isinstance(task.solve(argument), types[task.returns]), task.name


def test_prompts_come_from_files(tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    path.write_text(json.dumps({"prompt": "Why?"}) + "\n\n" + json.dumps({"messages": chat}) + "\n")
    first, second = read_prompts([path])
    assert (first.kind, first.messages) == ("own", (Message("user", "Why?"),))
    assert second.messages == (Message("system", "Be brief."), Message("user", "Hi"))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 1: not JSON"),
        ("[]", "either 'prompt' or 'messages'"),
        ('{"prompt": "a", "messages": []}', "either 'prompt' or 'messages'"),
        ('{"prompt": 3}', "a text as content"),
        ('{"messages": []}', "not empty"),
        ('{"messages": [{"role": "robot", "content": "a"}]}', "a role"),
        ('{"messages": [{"role": "assistant", "content": "a"}]}', "must be the user's"),
    ],
)
def test_lines_that_are_no_prompts_are_named(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "own.jsonl"
    path.write_text(line)
    with pytest.raises(PromptFileError, match=message):
        list(read_prompts([path]))
    with pytest.raises(PromptFileError, match="cannot be read"):
        list(read_prompts([tmp_path / "absent"]))


def test_the_draft_vocabulary_is_the_most_frequent_tokens() -> None:
    texts = [torch.tensor([5, 5, 5, 2, 2, 9]), torch.tensor([9, 7], dtype=torch.int32)]
    assert choose_vocabulary(texts, 12, 3, frozenset()).tolist() == [2, 5, 9]
    assert choose_vocabulary(texts, 12, 4, frozenset({11})).tolist() == [2, 5, 9, 11]
    # What is left is filled with low ids.
    assert choose_vocabulary(texts, 12, 6, frozenset()).tolist() == [0, 1, 2, 5, 7, 9]
    with pytest.raises(ValueError, match="1 to 12 tokens, not 13"):
        choose_vocabulary(texts, 12, 13, frozenset({1}))
