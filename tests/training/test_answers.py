"""What the target writes, and that what is kept of it is what the target knows."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from tests.training.conftest import Written, encode, numbered_prompts
from training.answers import AnswerShard
from training.generate import generate
from training.target import feature_layers


def test_answers_and_features_are_those_of_transformers(written: Written) -> None:
    model = AutoModelForCausalLM.from_pretrained(written.model_dir, dtype=torch.float32)
    prompts = list(islice(numbered_prompts(), 16))
    shard = AnswerShard(written.shards[1])
    for index in (0, 1, 2, 5):
        answer = shard.read(index)
        prompt = encode(prompts[8 + index])
        assert answer.kind == prompts[8 + index].kind
        assert answer.token_ids[: answer.prompt_length].tolist() == prompt
        with torch.no_grad():
            result = model(answer.token_ids[None].long(), output_hidden_states=True)
        states, logits = result.hidden_states, result.logits[0]
        layers = feature_layers(written.target.config.num_layers)
        features = torch.cat([states[layer][0] for layer in layers], dim=1)[:-1]
        torch.testing.assert_close(answer.features.float(), features, rtol=1e-2, atol=1e-2)
        tail = slice(answer.prompt_length, -1)
        torch.testing.assert_close(answer.final.float(), states[-1][0][tail], rtol=1e-2, atol=1e-2)
        torch.testing.assert_close(answer.log_totals, logits[tail].logsumexp(dim=1), rtol=1e-4, atol=1e-4)
        if answer.greedy:
            first = answer.prompt_length
            assert torch.equal(logits[first - 1 : -1].argmax(dim=1), answer.token_ids[first:].long())


def test_half_of_the_answers_are_greedy_and_all_are_within_bounds(written: Written) -> None:
    shards = [AnswerShard(path) for path in written.shards]
    assert [len(shard) for shard in shards] == [8] * 5
    answers = [shard.read(index) for shard in shards for index in range(len(shard))]
    assert [answer.greedy for answer in answers] == [True, False] * 20
    for answer in answers:
        assert 0 < len(answer.token_ids) - answer.prompt_length <= written.config.max_new_tokens


def test_a_run_that_was_stopped_writes_the_missing_shards_alike(written: Written, tmp_path: Path) -> None:
    def run() -> list[Path]:
        return generate(written.config, numbered_prompts(), encode, tmp_path, lambda progress: None)

    for path in run()[2:4]:
        path.unlink()
    again = run()
    assert [path.name for path in again] == [path.name for path in written.shards]
    for own, first in zip(again, written.shards, strict=True):
        for index in range(8):
            one, other = AnswerShard(own).read(index), AnswerShard(first).read(index)
            assert torch.equal(one.token_ids, other.token_ids)
            # Batches differ, and with them the order of sums.
            torch.testing.assert_close(one.features, other.features, rtol=2e-2, atol=2e-2)


def test_too_few_prompts_make_fewer_shards(written: Written, tmp_path: Path) -> None:
    paths = generate(written.config, islice(numbered_prompts(), 10), encode, tmp_path, lambda progress: None)
    assert [len(AnswerShard(path)) for path in paths] == [8, 2]
