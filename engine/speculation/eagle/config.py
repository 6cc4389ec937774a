"""Reads the config.json of an EAGLE head, in each of the published layouts, against the model it drafts for.

EAGLE-3 heads come in three forms: flat (the authors' own, and SpecForge's), flat with a nested `eagle_config`
(NVIDIA's, and SpecForge's where layers are chosen), and `speculators` folders. EAGLE-1 and EAGLE-2 heads are
one form: their weights are the same.

Layers whose features a head reads are counted in two ways: `speculators` names the layer that a feature
enters, `eagle_config` the layer that it leaves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from pathlib import Path

from engine.models.checkpoint import read_json
from engine.models.config import ModelConfig
from engine.models.errors import CheckpointError, UnsupportedModelError
from engine.models.family import FULL, ConfigSource, read_decoder_config, require_layer_types
from engine.models.features import FeaturePoints
from engine.models.fields import RawConfig, boolean, positive_int, require_neutral
from engine.models.registry import CONFIG_FILE

_LAYER_IDS = "eagle_aux_hidden_state_layer_ids"
_SPECULATORS = "speculators_model_type"
_QWEN3_HEAD_DIM = 128


class Generation(IntEnum):
    """EAGLE-2 is EAGLE-1 with another way to draft."""

    ONE = 1
    THREE = 3


@dataclass(frozen=True, slots=True)
class EagleConfig:
    """One head.

    Attributes:
        generation: which arithmetic it has.
        layers: shapes and constants of its decoder layers.
        points: features that it reads of the model.
        target_hidden_size: H of the model.
        target_vocab_size: V of the model.
        draft_vocab_size: tokens that it can draft.
        tied: whether its LM head may be missing: then it is the embeddings of the tokens that it can draft.
        fuse_bias: whether `fc` has a bias.
        norm_before_fuse: whether the concatenated features are normed as one before `fc`.
        norm_each_feature: whether each of them is.
        norm_before_residual: whether the residual stream of the first layer is the normed feature.
        norm_output: whether the next step reads the output after the final norm.
    """

    generation: Generation
    layers: ModelConfig
    points: FeaturePoints
    target_hidden_size: int
    target_vocab_size: int
    draft_vocab_size: int
    tied: bool
    fuse_bias: bool
    norm_before_fuse: bool = False
    norm_each_feature: bool = False
    norm_before_residual: bool = False
    norm_output: bool = False


def read_eagle_config(
    folder: Path, generation: Generation, target: ModelConfig, context_length: int = 0
) -> EagleConfig:
    """Reads config.json.

    Args:
        folder: of the head.
        generation: that is wanted.
        target: the model that it drafts for.
        context_length: most tokens of a context; 0 is the model's own limit.

    Raises:
        CheckpointError: no such folder, or a config that is missing or makes no sense.
        UnsupportedModelError: a head of another generation, for another model, or with a setting that is not
            computed.
    """
    if not folder.is_dir():
        raise CheckpointError(f"folder {folder} of the draft head does not exist")
    raw = read_json(folder / CONFIG_FILE)
    length = context_length or target.max_position_embeddings
    try:
        if generation is Generation.ONE:
            config = _first_generation(raw, target, length)
        elif raw.get(_SPECULATORS) is not None:
            config = _speculators(raw, target, length)
        else:
            config = _third_generation(raw, target, length)
        _require_fit(config, target)
    except (CheckpointError, UnsupportedModelError) as error:
        raise type(error)(f"{folder}: {error}") from None
    return config


def _first_generation(raw: RawConfig, target: ModelConfig, context_length: int) -> EagleConfig:
    if raw.get(_SPECULATORS) is not None or raw.get("draft_vocab_size") is not None:
        raise UnsupportedModelError("not an EAGLE-1 or EAGLE-2 head; EAGLE-3 is method 'eagle3'")
    layers = _read_layers(raw, target, context_length)
    return EagleConfig(
        generation=Generation.ONE,
        layers=layers,
        points=FeaturePoints(final=True),
        target_hidden_size=layers.hidden_size,
        target_vocab_size=layers.vocab_size,
        draft_vocab_size=layers.vocab_size,
        tied=False,
        fuse_bias=boolean(raw, "bias", True),
    )


def _third_generation(raw: RawConfig, target: ModelConfig, context_length: int) -> EagleConfig:
    nested = raw.get("eagle_config")
    if nested is None:
        nested = {}
    if not isinstance(nested, dict):
        raise CheckpointError(f"config.json: eagle_config must be an object, not {nested!r}")
    require_neutral(
        nested,
        {
            "use_aux_hidden_state": True,
            "use_input_layernorm_in_first_layer": True,
            "use_last_layernorm": True,
            "use_mtp_layernorm": False,
            "next_layer_regular": True,
            "parallel_draft_step": 1,
            "parallel_draft_heads_num_layers": 0,
        },
    )
    # One exporter means by it that the next step reads normed outputs, another that the LM head does.
    require_neutral(raw, {"norm_output": False})
    require_neutral(nested, {"norm_output": False})
    entering = _layer_ids(raw, 0)
    left = _layer_ids(nested, 1)
    if entering is not None and left is not None and entering != left:
        raise CheckpointError(
            f"config.json: {_LAYER_IDS} means layers entered {list(entering)} at the top and "
            f"{list(left)} in eagle_config"
        )
    stated = {key: value for key, value in raw.items() if value is not None}
    return _of_three(raw, raw, target, context_length, entering or left, nested | stated)


def _speculators(raw: RawConfig, target: ModelConfig, context_length: int) -> EagleConfig:
    require_neutral(raw, {_SPECULATORS: "eagle3"})
    inner = raw.get("transformer_layer_config")
    if not isinstance(inner, dict):
        raise CheckpointError(f"config.json: transformer_layer_config must be an object, not {inner!r}")
    if raw.get("norm_before_residual") is None:
        raise CheckpointError(
            "config.json: norm_before_residual is missing, and what that means differs between readers"
        )
    config = _of_three(raw, inner, target, context_length, _layer_ids(raw, 0), raw)
    return replace(config, norm_output=boolean(raw, "norm_output", False))


def _of_three(
    raw: RawConfig,
    layers_raw: RawConfig,
    target: ModelConfig,
    context_length: int,
    entering: tuple[int, ...] | None,
    norms: RawConfig,
) -> EagleConfig:
    layers = _read_layers(layers_raw, target, context_length)
    if entering is None:
        # The authors' choice: near the beginning, the middle, near the end.
        entering = (2, target.num_layers // 2, target.num_layers - 3)
    if not all(0 <= layer <= target.num_layers for layer in entering):
        raise UnsupportedModelError(
            f"config.json: features that enter layers {list(entering)} are not there in a model of "
            f"{target.num_layers} layers"
        )
    counted = raw.get("num_aux_hidden_states")
    if counted is not None and counted != len(entering):
        raise CheckpointError(
            f"config.json: num_aux_hidden_states is {counted!r}, but features enter layers {list(entering)}"
        )
    return EagleConfig(
        generation=Generation.THREE,
        layers=layers,
        points=FeaturePoints(entering=entering),
        target_hidden_size=positive_int(raw, "target_hidden_size", layers.hidden_size),
        target_vocab_size=layers.vocab_size,
        draft_vocab_size=positive_int(raw, "draft_vocab_size", layers.vocab_size),
        tied=boolean(raw, "tie_word_embeddings", False),
        fuse_bias=False,
        norm_before_fuse=boolean(norms, "norm_before_fc", False),
        norm_each_feature=boolean(norms, "fc_norm", False),
        norm_before_residual=boolean(norms, "norm_before_residual", False),
    )


def _read_layers(raw: RawConfig, target: ModelConfig, context_length: int) -> ModelConfig:
    """The head's layers. Where all of the model's have a window, so have they: what lies behind is gone."""
    model_type = raw.get("model_type", "llama")
    if model_type not in ("llama", "qwen3"):
        raise UnsupportedModelError(f"config.json: draft layers of type {model_type!r} are not supported")
    if model_type == "qwen3":
        raw = {"head_dim": _QWEN3_HEAD_DIM, **raw}
    require_layer_types(raw, FULL)
    source = ConfigSource(raw, frozenset(), context_length)
    layers = read_decoder_config(source, family=f"eagle {model_type}")
    biased = boolean(raw, "attention_bias", False)
    return replace(
        layers,
        windows=(target.layer_groups[0].window,) * layers.num_layers,
        qkv_bias=biased,
        output_bias=biased,
        mlp_bias=boolean(raw, "mlp_bias", False),
        head_norms=model_type == "qwen3",
    )


def _layer_ids(raw: RawConfig, offset: int) -> tuple[int, ...] | None:
    """Layers that features enter: what the file names, and `offset`."""
    ids = raw.get(_LAYER_IDS)
    if ids is None:
        return None
    if not isinstance(ids, list) or not ids or any(type(layer) is not int for layer in ids):
        raise CheckpointError(f"config.json: {_LAYER_IDS} must be a list of layers, not {ids!r}")
    return tuple(layer + offset for layer in ids)


def _require_fit(config: EagleConfig, target: ModelConfig) -> None:
    """Its KV lies in the blocks of the model, and its tokens are the model's."""
    layers = config.layers
    wanted: Mapping[str, tuple[int, int]] = {
        "key-value heads": (layers.num_kv_heads, target.num_kv_heads),
        "dimensions of a head": (layers.head_dim, target.head_dim),
        "hidden size of the model": (config.target_hidden_size, target.hidden_size),
        "tokens in the vocabulary": (config.target_vocab_size, target.vocab_size),
    }
    for what, (own, models) in wanted.items():
        if own != models:
            raise UnsupportedModelError(
                f"a head for another model: {what}: {own}, where the model's are {models}"
            )
