"""The unrolled training against a head that runs one chain at a time, slot by slot, as the paper has it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from engine.models.rotary import inverse_frequencies
from tests.training.conftest import Written
from training.answers import AnswerShard
from training.dataset import pack
from training.head import Eagle3Head, HeadConfig
from training.target import feature_layers
from training.unroll import unroll


def _random_head(written: Written) -> Eagle3Head:
    torch.manual_seed(1)
    config = written.target.config
    head = Eagle3Head(HeadConfig.like(config, len(feature_layers(config.num_layers)), 40, tied=False))
    for parameter in head.parameters():
        nn.init.normal_(parameter, 0.0, 0.2)
    return head


def _rotate(vector: torch.Tensor, position: int, frequencies: torch.Tensor) -> torch.Tensor:
    angles = position * frequencies
    first, second = vector.chunk(2, dim=-1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


class _OneByOne:
    """Keys and values in a list; one token at a time."""

    def __init__(self, head: Eagle3Head, embedding: torch.Tensor) -> None:
        self.head, self.embedding = head, embedding
        self.keys: list[torch.Tensor] = []
        self.values: list[torch.Tensor] = []

    def step(self, token: int, hidden: torch.Tensor, position: int) -> torch.Tensor:
        config, layer = self.head.config, self.head.midlayer
        both = torch.cat((layer.input_layernorm(self.embedding[token]), layer.hidden_norm(hidden)))
        attention, dim = layer.self_attn, config.head_dim
        frequencies = inverse_frequencies(config.rope)
        query = _rotate(attention.q_proj(both).view(-1, dim), position, frequencies)
        self.keys.append(_rotate(attention.k_proj(both).view(-1, dim), position, frequencies))
        self.values.append(attention.v_proj(both).view(-1, dim))
        group = config.num_heads // config.num_kv_heads
        keys = torch.stack(self.keys).repeat_interleave(group, dim=1)
        values = torch.stack(self.values).repeat_interleave(group, dim=1)
        weights = (torch.einsum("hd,khd->hk", query, keys) * dim**-0.5).softmax(dim=1)
        attended = torch.einsum("hk,khd->hd", weights, values).flatten()
        middle = hidden + attention.o_proj(attended)
        inner = layer.post_attention_layernorm(middle)
        return middle + layer.mlp.down_proj(
            nn.functional.silu(layer.mlp.gate_proj(inner)) * layer.mlp.up_proj(inner)
        )


@torch.no_grad()
def test_each_step_is_what_a_drafting_head_computes(written: Written) -> None:
    shard = AnswerShard(written.shards[0])
    answers = [shard.read(index) for index in (0, 3, 5)]
    batch = pack(answers, "cpu").batch
    head, embedding = _random_head(written), written.target.embedding
    found: dict[tuple[int, int], torch.Tensor] = {}
    for number, step in enumerate(unroll(head, embedding, batch, num_steps=4)):
        for row, place in enumerate(step.places.tolist()):
            found[number, place - number] = step.hidden[row]
    expected = 0
    for answer, start in zip(answers, batch.starts, strict=False):
        tokens, features = answer.token_ids.tolist(), answer.features.float()
        for anchor in range(answer.prompt_length, len(tokens) - 1):
            plain = _OneByOne(head, embedding)
            for slot in range(1, anchor):
                plain.step(tokens[slot], head.fuse(features[slot - 1][None])[0], slot)
            hidden = head.fuse(features[anchor - 1][None])[0]
            for number in range(min(4, len(tokens) - 1 - anchor)):
                hidden = plain.step(tokens[anchor + number], hidden, anchor + number)
                torch.testing.assert_close(found[number, start + anchor], hidden, rtol=1e-3, atol=1e-3)
                expected += 1
    assert len(found) == expected


@torch.no_grad()
def test_chains_that_are_left_out_change_no_other(written: Written) -> None:
    shard = AnswerShard(written.shards[1])
    batch = pack([shard.read(0), shard.read(1)], "cpu").batch
    head, embedding = _random_head(written), written.target.embedding
    every = list(unroll(head, embedding, batch, 3))
    kept = torch.arange(len(every[0].places)) % 3 == 0
    some = list(unroll(head, embedding, batch, 3, kept))
    assert torch.equal(every[0].places, some[0].places)
    assert 0 < len(some[1].places) < len(every[1].places)
    for number in (1, 2):
        rows = torch.isin(every[number].places, some[number].places)
        torch.testing.assert_close(every[number].hidden[rows], some[number].hidden)


def test_gradients_reach_every_weight(written: Written) -> None:
    shard = AnswerShard(written.shards[1])
    batch = pack([shard.read(0)], "cpu").batch
    head = _random_head(written)
    steps = list(unroll(head, written.target.embedding, batch, 3))
    torch.stack([head.lm_head(head.norm(step.hidden)).square().mean() for step in steps]).sum().backward()
    without = [name for name, value in head.named_parameters() if value.grad is None or not value.grad.any()]
    assert without == []


@pytest.mark.parametrize("num_steps", [1, 64])
def test_chains_end_where_the_answer_does(written: Written, num_steps: int) -> None:
    answer = AnswerShard(written.shards[1]).read(0)
    batch = pack([answer], "cpu").batch
    guesses = len(answer.token_ids) - 1 - answer.prompt_length
    steps = list(unroll(_random_head(written), written.target.embedding, batch, num_steps))
    assert [len(step.places) for step in steps] == [guesses - number for number in range(len(steps))]
    assert len(steps) == min(num_steps, guesses)
