"""Heads as folders, in the layout of the EAGLE-3 authors' checkpoints, with safetensors.

`config.json` describes the layer as a Llama's; `d2t` holds for each draft token what is to be added to its
number to make the target's id, `t2d` which of the target's tokens can be guessed.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import load_file

from engine.models.checkpoint import SINGLE_FILE, read_json
from engine.models.config import Rope
from engine.models.errors import CheckpointError
from engine.models.registry import CONFIG_FILE
from training.answers import save_whole
from training.head import Eagle3Head, HeadConfig
from training.target import TargetWeights, feature_layers

_ROPE = ("rope_theta", "rope_scaling", "rope_parameters")
_LM_HEAD = "lm_head.weight"
_LAYER_IDS = "eagle_aux_hidden_state_layer_ids"
_OF_TARGET = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "hidden_act",
    "max_position_embeddings",
    "rms_norm_eps",
    "bos_token_id",
    "eos_token_id",
)


def export_head(head: Eagle3Head, token_ids: torch.Tensor, model_dir: Path, folder: Path) -> None:
    """Writes a head in bf16.

    Args:
        head: the head; its factors on features become part of `fc`, and a tied LM head is left out.
        token_ids: [Vd] int64, the target's ids of its draft vocabulary, ascending.
        model_dir: the target, of whose config.json the head's is made.
        folder: where to; made where it is not there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    target = read_json(model_dir / CONFIG_FILE)
    vocab_size = target["vocab_size"]
    assert isinstance(vocab_size, int)
    weights = {name: tensor.detach().cpu() for name, tensor in head.state_dict().items()}
    weights["fc.weight"] = weights["fc.weight"] * weights.pop("feature_scale")
    if head.config.tied:
        del weights[_LM_HEAD]
    tensors = {name: tensor.to(torch.bfloat16).contiguous() for name, tensor in weights.items()}
    token_ids = token_ids.cpu()
    tensors["d2t"] = token_ids - torch.arange(len(token_ids))
    tensors["t2d"] = torch.zeros(vocab_size, dtype=torch.bool).index_fill_(0, token_ids, True)
    save_whole(folder / SINGLE_FILE, tensors, {"format": "pt"})
    num_layers = target["num_hidden_layers"]
    assert isinstance(num_layers, int)
    rope = head.config.rope
    kept = _OF_TARGET if rope.scaling is None else (*_OF_TARGET, *_ROPE)
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "rope_theta": rope.theta,
        **{key: target[key] for key in kept if target.get(key) is not None},
        "num_hidden_layers": 1,
        "draft_vocab_size": len(token_ids),
        "target_hidden_size": head.config.hidden_size,
        _LAYER_IDS: list(feature_layers(num_layers)),
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": head.config.tied,
        "torch_dtype": "bfloat16",
    }
    (folder / CONFIG_FILE).write_text(json.dumps(config, indent=2) + "\n")


def import_head(folder: Path, target: TargetWeights, scale: torch.Tensor) -> tuple[Eagle3Head, torch.Tensor]:
    """Reads a head that `export_head` wrote, to train it further.

    Args:
        folder: of the head.
        target: its target.
        scale: [3 H], factors on the features, taken out of `fc` again.

    Returns:
        The head and the target's ids of its draft vocabulary.

    Raises:
        CheckpointError: no head for this target, or one of another form.
    """
    config = read_json(folder / CONFIG_FILE)
    layers = list(feature_layers(target.config.num_layers))
    if config.get(_LAYER_IDS) != layers:
        raise CheckpointError(
            f"{folder}: the head must read layers {layers}, not {config.get(_LAYER_IDS)!r}, to be trained on"
        )
    path = folder / SINGLE_FILE
    if not path.exists():
        raise CheckpointError(f"{path} is missing")
    tensors = load_file(path)
    offsets = tensors.pop("d2t", None)
    if offsets is None:
        raise CheckpointError(f"{path}: weight 'd2t' is missing")
    tensors.pop("t2d", None)
    token_ids = offsets + torch.arange(len(offsets))
    tied = _LM_HEAD not in tensors
    head = Eagle3Head(HeadConfig.like(target.config, len(layers), len(token_ids), tied))
    theta = config.get("rope_theta")
    # Heads that rotate as their target have its keys.
    if isinstance(theta, int | float) and not any(config.get(key) for key in _ROPE[1:]):
        head.turn(Rope(head.config.rope.dim, float(theta)))
    state = {name: tensor.float() for name, tensor in tensors.items()}
    if tied:
        state[_LM_HEAD] = target.lm_head.index_select(0, token_ids)
    state["feature_scale"] = scale
    try:
        state["fc.weight"] = state["fc.weight"] / scale
        head.load_state_dict(state)
    except (KeyError, RuntimeError) as error:
        raise CheckpointError(f"{path} does not hold a head for this target: {error}") from error
    return head, token_ids
