"""Where the weights of a head begin."""

from __future__ import annotations

from dataclasses import replace

import torch

from training.head import Eagle3Head, HeadConfig
from training.target import TargetWeights, feature_layers

_CERTAINTY = 0.2
"""Of the first guesses, which are no good: a fraction of the target's."""


def new_head(
    target: TargetWeights, token_ids: torch.Tensor, scale: torch.Tensor, seed: int, tied: bool
) -> Eagle3Head:
    """A head that has learned nothing but what it shares with its target.

    Its LM head and the norm before it are the target's, and `fc` passes on the latest of the features, from
    which the target itself is about to guess. The layer adds nothing at first.

    Args:
        target: the target.
        token_ids: [Vd], the draft vocabulary.
        scale: [3 H], factors on the features.
        seed: of the random weights.
        tied: whether its LM head stays the target's.
    """
    generator = torch.Generator().manual_seed(seed)
    layers = feature_layers(target.config.num_layers)
    head = Eagle3Head(HeadConfig.like(target.config, len(layers), len(token_ids), tied))
    hidden = target.config.hidden_size
    with torch.no_grad():
        for parameter in head.midlayer.parameters():
            if parameter.dim() == 2:
                parameter.normal_(0.0, parameter.shape[1] ** -0.5, generator=generator)
        for weight in (head.midlayer.self_attn.o_proj.weight, head.midlayer.mlp.down_proj.weight):
            weight.zero_()
        head.fc.weight.normal_(0.0, 0.02 * head.fc.weight.shape[1] ** -0.5, generator=generator)
        head.fc.weight[:, -hidden:] += torch.eye(hidden)
        head.norm.weight.copy_(target.final_norm * _CERTAINTY)
        head.lm_head.weight.copy_(target.lm_head.index_select(0, token_ids))
        head.feature_scale.copy_(scale)
    return head


@torch.no_grad()
def with_vocabulary(
    head: Eagle3Head, token_ids: torch.Tensor, wanted: torch.Tensor, target: TargetWeights, tied: bool
) -> Eagle3Head:
    """A trained head with another draft vocabulary.

    Unless it is tied now, rows of tokens that it knew stay. The others are made of the target's, by the
    linear map that makes the known ones of the target's best.

    Args:
        head: the head.
        token_ids: [Vd], its draft vocabulary, ascending.
        wanted: [Vd'], the other, ascending.
        target: its target.
        tied: whether the other's LM head is the target's.
    """
    known = head.lm_head.weight
    rows = target.lm_head.index_select(0, wanted)
    if not tied:
        rows = rows @ torch.linalg.lstsq(target.lm_head.index_select(0, token_ids), known).solution
        places = torch.searchsorted(token_ids, wanted).clamp(max=len(token_ids) - 1)
        kept = token_ids.index_select(0, places) == wanted
        rows[kept] = known.index_select(0, places[kept])
    other = Eagle3Head(replace(head.config, draft_vocab_size=len(wanted), tied=tied))
    other.load_state_dict({**head.state_dict(), "lm_head.weight": rows})
    return other
