"""Reading config.json: what is understood, and what is refused by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engine.models.config import ModelConfig
from engine.models.errors import CheckpointError, ModelError, UnsupportedModelError
from engine.models.registry import families, read_config

LLAMA: dict[str, object] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 50000.0,
    "eos_token_id": 2,
    "bos_token_id": 1,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
}
QWEN2 = LLAMA | {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "sliding_window": 4096}


def write(folder: Path, config: dict[str, object], generation: dict[str, object] | None = None) -> Path:
    (folder / "config.json").write_text(json.dumps(config))
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    return folder


def theta(config: ModelConfig) -> float:
    """The rotary base of all layers, over whole heads and not scaled."""
    (rope,) = set(config.ropes)
    assert (rope.dim, rope.scaling, rope.magnitude) == (config.head_dim, None, 1.0)
    return rope.theta


def test_families_are_found_in_their_files() -> None:
    assert {family.model_type for family in families()} >= {"llama", "qwen2"}


def test_llama(tmp_path: Path) -> None:
    config = read_config(write(tmp_path, LLAMA))
    assert (config.family, config.num_layers, config.num_heads, config.num_kv_heads) == ("llama", 2, 4, 2)
    assert (config.head_dim, theta(config), config.rms_norm_eps) == (16, 50000.0, 1e-5)
    assert (config.attention_scale, config.windows, len(config.ropes)) == (0.25, (0, 0), 2)
    assert config.tie_word_embeddings
    assert not config.qkv_bias
    assert (config.eos_token_ids, config.bos_token_id) == (frozenset({2}), 1)


def test_qwen2_has_biases_and_no_window(tmp_path: Path) -> None:
    config = read_config(write(tmp_path, QWEN2))
    assert config.family == "qwen2"
    assert config.qkv_bias


def test_absent_and_null_values_have_their_defaults(tmp_path: Path) -> None:
    raw = LLAMA | {"num_key_value_heads": None, "head_dim": None, "bos_token_id": None}
    del raw["tie_word_embeddings"], raw["rope_theta"]
    config = read_config(write(tmp_path, raw))
    assert (config.num_kv_heads, config.head_dim, config.bos_token_id) == (4, 16, None)
    assert (config.tie_word_embeddings, theta(config)) == (False, 10000.0)


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_theta": 70000.0},
        {"rope_theta": None, "rope_parameters": {"rope_type": "default", "rope_theta": 70000.0}},
        {"rope_theta": 70000.0, "rope_parameters": {"rope_type": "default", "rope_theta": 70000.0}},
        {"rope_theta": 70000.0, "rope_scaling": None},
        {"rope_theta": 70000, "rope_scaling": {"type": "default"}},
    ],
)
def test_both_spellings_of_the_rotary_base(tmp_path: Path, rope: dict[str, object]) -> None:
    assert theta(read_config(write(tmp_path, LLAMA | rope))) == 70000.0


def test_two_rotary_bases_are_an_error(tmp_path: Path) -> None:
    rope = {"rope_parameters": {"rope_type": "default", "rope_theta": 70000.0}}
    with pytest.raises(CheckpointError, match=r"rope_theta is 50000.0 in one place and 70000.0 in another"):
        read_config(write(tmp_path, LLAMA | rope))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rope_scaling": {"rope_type": "mrope"}}, "rotary embedding of type 'mrope'"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1.0}}}, "with full_attention is not"),
        ({"hidden_act": "gelu"}, "hidden_act = 'gelu' is not supported, only 'silu'"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor = 0.5"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config is not supported"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer type 'sliding_attention'"),
    ],
)
def test_what_is_not_computed_is_refused(tmp_path: Path, change: dict[str, object], message: str) -> None:
    with pytest.raises(UnsupportedModelError, match=message):
        read_config(write(tmp_path, LLAMA | change))


def test_only_the_upper_layers_of_qwen2_have_a_window(tmp_path: Path) -> None:
    sliding = QWEN2 | {"use_sliding_window": True, "num_hidden_layers": 4, "max_window_layers": 3}
    assert read_config(write(tmp_path, sliding)).windows == (0, 0, 0, 4096)
    types = ["sliding_attention", "full_attention", "full_attention", "sliding_attention"]
    assert read_config(write(tmp_path, sliding | {"layer_types": types})).windows == (4096, 0, 0, 4096)
    with pytest.raises(CheckpointError, match="'sliding_attention', but there is no sliding window"):
        read_config(write(tmp_path, sliding | {"layer_types": types, "use_sliding_window": False}))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"vocab_size": None}, "vocab_size must be a positive integer, not None"),
        ({"hidden_size": "64"}, "hidden_size must be a positive integer, not '64'"),
        ({"num_hidden_layers": 0}, "num_hidden_layers must be a positive integer, not 0"),
        ({"num_key_value_heads": 3}, "4 attention heads cannot share 3 key-value heads"),
        ({"hidden_size": 63}, "hidden_size 63 is no multiple of 4"),
        ({"head_dim": 15}, "head_dim 15 is odd"),
        ({"rms_norm_eps": "small"}, "rms_norm_eps must be a positive number"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings must be true or false"),
        ({"eos_token_id": "</s>"}, "eos_token_id must be a token id or a list of them"),
        ({"rope_parameters": 3}, "rope_parameters must be an object"),
    ],
)
def test_values_that_make_no_sense(tmp_path: Path, change: dict[str, object], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        read_config(write(tmp_path, LLAMA | change))


@pytest.mark.parametrize(
    ("config", "generation", "expected"),
    [
        (2, None, {2}),
        ([2, 3], None, {2, 3}),
        (2, {"eos_token_id": [5, 6]}, {5, 6}),
        (None, {"eos_token_id": 7}, {7}),
        (None, {}, set()),
    ],
)
def test_generation_config_names_the_eos_ids_first(
    tmp_path: Path, config: object, generation: dict[str, object] | None, expected: set[int]
) -> None:
    folder = write(tmp_path, LLAMA | {"eos_token_id": config}, generation)
    assert read_config(folder).eos_token_ids == expected


def test_unsupported_family_names_what_is_supported(tmp_path: Path) -> None:
    write(tmp_path, LLAMA | {"architectures": ["FalconForCausalLM"], "model_type": "falcon"})
    with pytest.raises(
        UnsupportedModelError, match=r"FalconForCausalLM is not supported; .*LlamaFor.*Qwen2For"
    ):
        read_config(tmp_path)
    # The architecture decides: the same model type also comes as a classifier.
    write(tmp_path, LLAMA | {"architectures": ["LlamaForSequenceClassification"]})
    with pytest.raises(UnsupportedModelError, match="LlamaForSequenceClassification is not supported"):
        read_config(tmp_path)


def test_model_type_decides_where_architectures_are_absent(tmp_path: Path) -> None:
    assert read_config(write(tmp_path, QWEN2 | {"architectures": None})).family == "qwen2"


def test_folder_config_and_json_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="nowhere does not exist"):
        read_config(tmp_path / "nowhere")
    with pytest.raises(ModelError, match=r"config\.json is missing"):
        read_config(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelError, match=r"config\.json cannot be read as JSON"):
        read_config(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(ModelError, match="does not hold a JSON object"):
        read_config(tmp_path)
