from __future__ import annotations

import torch

from tests.training.conftest import Written
from training.initial import new_head, with_vocabulary
from training.target import feature_layers


def test_a_head_keeps_what_it_knows_of_tokens_that_stay(written: Written) -> None:
    target = written.target
    width = len(feature_layers(target.config.num_layers)) * target.config.hidden_size
    known, wanted = torch.arange(100, 200), torch.arange(150, 250)
    head = new_head(target, known, torch.ones(width), seed=1, tied=False)
    mix = torch.randn(target.config.hidden_size, target.config.hidden_size, generator=torch.manual_seed(2))
    with torch.no_grad():
        head.lm_head.weight.copy_(target.lm_head[known] @ mix)
    other = with_vocabulary(head, known, wanted, target, tied=False)
    assert other.config.draft_vocab_size == 100
    torch.testing.assert_close(other.lm_head.weight[:50], head.lm_head.weight[50:], rtol=0, atol=0)
    # The others are the target's as the head has turned them.
    torch.testing.assert_close(other.lm_head.weight[50:], target.lm_head[200:250] @ mix, rtol=0.01, atol=0.01)
    torch.testing.assert_close(other.fc.weight, head.fc.weight, rtol=0, atol=0)
