"""Published layouts of EAGLE heads: all weights accounted for, what cannot be served refused by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from engine.models.base import DraftedLM
from engine.models.errors import CheckpointError, UnsupportedModelError
from engine.models.features import FeaturePoints
from engine.models.loader import load_model
from engine.speculation.eagle.config import EagleConfig, Generation, read_eagle_config
from engine.speculation.eagle.loading import load_head
from tests.support.drafting import features_of
from tests.support.eagle_heads import (
    HeadShape,
    Tensors,
    flat_config,
    layers_config,
    make_eagle1,
    make_eagle3,
    speculators_config,
    write_head,
)
from tests.support.reference_model import prompt
from tests.support.tiny_models import tiny_llama, tiny_qwen2

Config = dict[str, object]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("target"), layers=7)


@pytest.fixture(scope="module")
def target(folder: Path) -> DraftedLM:
    return load_model(folder, ops="torch", attention_backend="sdpa")


def read(folder: Path, target: DraftedLM, config: Config, third: bool = True) -> EagleConfig:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    return read_eagle_config(folder, Generation.THREE if third else Generation.ONE, target.config)


@pytest.mark.parametrize("points", [(0, 4, 7), (2, 3, 4)], ids=str)
def test_features_are_transformers_hidden_states(
    folder: Path, target: DraftedLM, points: tuple[int, ...]
) -> None:
    """Those that enter a layer; for the number of layers what leaves the last one, before the final norm."""
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    tokens = prompt(20)
    last: list[torch.Tensor] = []
    hook = model.model.norm.register_forward_hook(lambda _, inputs, __: last.append(inputs[0]))
    with torch.inference_mode():
        states = model(torch.tensor([tokens]), output_hidden_states=True).hidden_states
    hook.remove()
    # The last of transformers' states is behind the final norm.
    entering = [*states[:-1], last[0]]
    found = features_of(target, FeaturePoints(points, final=True), tokens)
    wanted = torch.cat([*(entering[point][0] for point in points), states[-1][0]], dim=-1)
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4)


def test_layers_that_features_enter(target: DraftedLM, tmp_path: Path) -> None:
    """A head that reads the wrong ones drafts badly, and nothing else tells."""
    shape = HeadShape(target.config, entering=None)
    ids = "eagle_aux_hidden_state_layer_ids"
    flat, speculators = flat_config(shape), speculators_config(shape)
    for config, entering in (
        (flat, (2, 3, 4)),
        (speculators, (2, 3, 4)),
        ({**speculators, ids: [1, 5, 6]}, (1, 5, 6)),
        ({**flat, ids: [1, 5, 6]}, (1, 5, 6)),
        ({**flat, "eagle_config": {ids: [1, 5, 6], "use_aux_hidden_state": True}}, (2, 6, 7)),
        ({**flat, "eagle_config": {ids: [1, 2]}, ids: [2, 3], "num_aux_hidden_states": 2}, (2, 3)),
    ):
        assert read(tmp_path, target, config).points == FeaturePoints(entering)
    first = read(tmp_path, target, layers_config(shape), third=False)
    assert first.points == FeaturePoints(final=True)
    for config, message in (
        ({**flat, "eagle_config": {ids: [1, 5, 7]}}, r"layers \[2, 6, 8\] are not there in a model of 7"),
        (
            {**flat, ids: [2, 3, 4], "eagle_config": {ids: [2, 3, 4]}},
            r"\[2, 3, 4\] at the top and \[3, 4, 5\]",
        ),
        ({**flat, ids: "all"}, "must be a list of layers, not 'all'"),
        ({**flat, "num_aux_hidden_states": 4}, "num_aux_hidden_states is 4"),
    ):
        with pytest.raises((CheckpointError, UnsupportedModelError), match=message):
            read(tmp_path, target, config)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"norm_output": True}, "norm_output = True is not supported"),
        ({"eagle_config": {"use_aux_hidden_state": False}}, "use_aux_hidden_state = False is not supported"),
        ({"eagle_config": {"parallel_draft_step": 4}}, "parallel_draft_step = 4"),
        ({"eagle_config": []}, r"eagle_config must be an object, not \[\]"),
        ({"model_type": "deepseek_v3"}, "draft layers of type 'deepseek_v3' are not supported"),
        ({"layer_types": ["sliding_attention"]}, "'sliding_attention' is not supported"),
        ({"hidden_act": "relu"}, "hidden_act = 'relu'"),
        ({"num_key_value_heads": 4}, "key-value heads: 4, where the model's are 2"),
        ({"head_dim": 32}, "dimensions of a head: 32, where the model's are 16"),
        ({"target_hidden_size": 128}, "hidden size of the model: 128, where the model's are 64"),
        ({"vocab_size": 300}, "tokens in the vocabulary: 300, where the model's are 259"),
        ({"norm_before_residual": "yes"}, "norm_before_residual must be true or false"),
        ({"speculators_model_type": "eagle"}, "speculators_model_type = 'eagle' is not supported"),
        ({"speculators_model_type": "eagle3"}, "transformer_layer_config must be an object"),
    ],
    ids=str,
)
def test_what_is_not_computed_is_refused(
    target: DraftedLM, tmp_path: Path, change: Config, message: str
) -> None:
    config = {**flat_config(HeadShape(target.config)), **change}
    with pytest.raises((CheckpointError, UnsupportedModelError), match=message):
        read(tmp_path, target, config)


def test_what_speculators_leave_out_is_not_guessed(target: DraftedLM, tmp_path: Path) -> None:
    config = speculators_config(HeadShape(target.config))
    del config["norm_before_residual"]
    with pytest.raises(CheckpointError, match="norm_before_residual is missing"):
        read(tmp_path, target, config)


def test_generations_are_told_apart(target: DraftedLM, tmp_path: Path) -> None:
    shape = HeadShape(target.config)
    for config in (flat_config(shape), speculators_config(shape)):
        with pytest.raises(UnsupportedModelError, match="EAGLE-3 is method 'eagle3'"):
            read(tmp_path, target, config, third=False)
    write_head(tmp_path, layers_config(shape), make_eagle1(shape))
    with pytest.raises(CheckpointError, match=r"weights 'layers\.0\.hidden_norm\.weight'.* missing"):
        load_head(tmp_path, Generation.THREE, target, attention_backend="sdpa")


@pytest.mark.parametrize("pickled", [False, True])
@pytest.mark.parametrize("middle", ["midlayer.", "layers.0."])
def test_layouts_hold_the_same_head(target: DraftedLM, tmp_path: Path, middle: str, pickled: bool) -> None:
    shape = HeadShape(target.config, draft_vocab=77, attention_bias=True)
    tensors = make_eagle3(shape, middle)
    write_head(tmp_path, flat_config(shape), tensors, pickled)
    head = load_head(tmp_path, Generation.THREE, target, attention_backend="sdpa")
    kept = tensors["t2d"].nonzero().squeeze(-1)
    assert torch.equal(head.to_target(torch.arange(77)), kept)
    outputs = torch.randn(3, 64)
    scale = torch.rsqrt(outputs.pow(2).mean(-1, keepdim=True) + 1e-5)
    wanted = (outputs * scale * tensors["norm.weight"]) @ tensors["lm_head.weight"].T
    torch.testing.assert_close(head.logits(outputs), wanted)


@pytest.mark.parametrize("own", [False, True])
def test_a_tied_head_without_an_lm_head_has_the_embedding(
    target: DraftedLM, tmp_path: Path, own: bool
) -> None:
    shape = HeadShape(target.config, draft_vocab=77)
    tensors = make_eagle3(shape)
    rows = tensors["lm_head.weight"] if own else target.shared().embedding[tensors["t2d"]]
    if not own:
        del tensors["lm_head.weight"]
    write_head(tmp_path, {**flat_config(shape), "tie_word_embeddings": True}, tensors)
    head = load_head(tmp_path, Generation.THREE, target, attention_backend="sdpa")
    outputs = torch.randn(3, 64)
    scale = torch.rsqrt(outputs.pow(2).mean(-1, keepdim=True) + 1e-5)
    torch.testing.assert_close(head.logits(outputs), (outputs * scale * tensors["norm.weight"]) @ rows.T)


def test_first_generation_may_have_no_bias(target: DraftedLM, tmp_path: Path) -> None:
    shape = HeadShape(target.config)
    write_head(tmp_path, {**layers_config(shape), "bias": False}, make_eagle1(shape, bias=False))
    load_head(tmp_path, Generation.ONE, target, attention_backend="sdpa")
    write_head(tmp_path, layers_config(shape), make_eagle1(shape, bias=False))
    with pytest.raises(CheckpointError, match=r"weight 'fc\.bias' missing"):
        load_head(tmp_path, Generation.ONE, target, attention_backend="sdpa")


def remove(name: str) -> Callable[[Tensors], None]:
    def change(tensors: Tensors) -> None:
        del tensors[name]

    return change


def put(name: str, tensor: torch.Tensor) -> Callable[[Tensors], None]:
    def change(tensors: Tensors) -> None:
        tensors[name] = tensor

    return change


def offset(index: int, value: int) -> Callable[[Tensors], None]:
    def change(tensors: Tensors) -> None:
        tensors["d2t"][index] = value

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (remove("fc.weight"), r"weight 'fc\.weight' missing"),
        (remove("midlayer.hidden_norm.weight"), r"weight 'layers\.0\.hidden_norm\.weight' missing"),
        (remove("d2t"), "weight 'd2t' missing"),
        (put("input_norm.weight", torch.ones(192)), r"weight 'input_norm\.weight' unknown to an EAGLE-3"),
        (put("extra", torch.ones(1)), "weight 'extra' unknown"),
        (put("layers.0.input_layernorm.weight", torch.ones(64)), "is there twice"),
        (put("fc.weight", torch.ones(64, 64)), r"has shape \[64, 64\] where config.json wants \[64, 192\]"),
        (put("norm.weight", torch.ones(64, dtype=torch.int8)), r"stored as torch\.int8"),
        (put("d2t", torch.zeros(77)), "holds whole numbers"),
        (put("t2d", torch.ones(259, dtype=torch.bool)), "name different tokens"),
        (offset(5, 0), "name different tokens|does not name 77 tokens"),
        (offset(76, 1000), "does not name 77 tokens of the model, each once"),
        (offset(0, -1), "does not name 77 tokens of the model, each once"),
    ],
    ids=range(13),
)
def test_weights_that_do_not_fit(
    target: DraftedLM, tmp_path: Path, change: Callable[[Tensors], None], message: str
) -> None:
    shape = HeadShape(target.config, draft_vocab=77)
    tensors = make_eagle3(shape)
    change(tensors)
    write_head(tmp_path, flat_config(shape), tensors)
    with pytest.raises(CheckpointError, match=message):
        load_head(tmp_path, Generation.THREE, target, attention_backend="sdpa")


def test_folders_that_hold_no_head(target: DraftedLM, tmp_path: Path) -> None:
    def load(folder: Path) -> None:
        load_head(folder, Generation.THREE, target, attention_backend="sdpa")

    with pytest.raises(CheckpointError, match="does not exist"):
        load(tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match=r"config\.json is missing"):
        load(tmp_path)
    shape = HeadShape(target.config)
    (tmp_path / "config.json").write_text(json.dumps(flat_config(shape)))
    with pytest.raises(CheckpointError, match=r"none of model\.safetensors, .*pytorch_model\.bin"):
        load(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"nothing")
    with pytest.raises(CheckpointError, match="corrupt, or holds more than tensors"):
        load(tmp_path)
    # A pickle that would run code.
    torch.save({"fc.weight": Path("x")}, tmp_path / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match="corrupt, or holds more than tensors"):
        load(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(CheckpointError, match="not a safetensors file"):
        load(tmp_path)


def test_heads_of_models_with_windows_have_their_window(target: DraftedLM, tmp_path: Path) -> None:
    shape = HeadShape(target.config)
    config = replace(target.config, windows=(24,) * 6 + (40,))
    (tmp_path / "config.json").write_text(json.dumps(flat_config(shape)))
    assert read_eagle_config(tmp_path, Generation.THREE, config).layers.windows == (40,)
    config = replace(target.config, windows=(24,) * 6 + (0,))
    assert read_eagle_config(tmp_path, Generation.THREE, config).layers.windows == (0,)


def test_heads_read_embeddings_as_their_own_or_the_models(tmp_path: Path) -> None:
    """An untied model's embedding is not its LM head."""
    model = load_model(tiny_qwen2(tmp_path / "model"), ops="torch", attention_backend="sdpa")
    shape = HeadShape(model.config)
    tensors = make_eagle1(shape)
    write_head(tmp_path / "head", layers_config(shape), tensors)
    head = load_head(tmp_path / "head", Generation.ONE, model, attention_backend="sdpa")
    hf = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    outputs = torch.randn(2, 64)
    torch.testing.assert_close(head.logits(outputs), outputs @ hf.lm_head.weight.detach().T)
    assert torch.equal(model.shared().embedding, hf.model.embed_tokens.weight.detach())
