"""Random EAGLE heads in the published layouts, and what they compute, densely and one entry at a time."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors.torch import save_file

from engine.models.config import ModelConfig

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class HeadShape:
    """Of a head to be made. `inner` is its feed-forward's size; `entering` None leaves the choice out."""

    target: ModelConfig
    hidden: int = 0
    heads: int = 0
    draft_vocab: int = 0
    inner: int = 96
    num_layers: int = 1
    rope_theta: float = 10000.0
    entering: tuple[int, ...] | None = (1, 2, 3)
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False
    attention_bias: bool = False
    seed: int = 0

    @property
    def width(self) -> int:
        return self.hidden or self.target.hidden_size

    @property
    def num_heads(self) -> int:
        return self.heads or self.target.num_heads

    @property
    def vocab(self) -> int:
        return self.draft_vocab or self.target.vocab_size


def layers_config(shape: HeadShape) -> dict[str, object]:
    """What all layouts say of the decoder layers."""
    target = shape.target
    return {
        "model_type": "llama",
        "hidden_size": shape.width,
        "intermediate_size": shape.inner,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": target.num_kv_heads,
        "head_dim": target.head_dim,
        "vocab_size": target.vocab_size,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 64,
        "rope_theta": shape.rope_theta,
        "attention_bias": shape.attention_bias,
    }


def _layer(shape: HeadShape, prefix: str, inputs: int, random: torch.Generator) -> Tensors:
    target, hidden = shape.target, shape.width
    query, shared = shape.num_heads * target.head_dim, target.num_kv_heads * target.head_dim
    linears = {
        "self_attn.q_proj": (query, inputs),
        "self_attn.k_proj": (shared, inputs),
        "self_attn.v_proj": (shared, inputs),
        "self_attn.o_proj": (hidden, query),
        "mlp.gate_proj": (shape.inner, hidden),
        "mlp.up_proj": (shape.inner, hidden),
        "mlp.down_proj": (hidden, shape.inner),
    }
    made = {
        f"{prefix}{name}.weight": torch.randn(rows, columns, generator=random) / columns**0.5 * 1.5
        for name, (rows, columns) in linears.items()
    }
    if shape.attention_bias:
        for name in ("q", "k", "v", "o"):
            rows = linears[f"self_attn.{name}_proj"][0]
            made[f"{prefix}self_attn.{name}_proj.bias"] = torch.randn(rows, generator=random)
    norms = ("input_layernorm", "post_attention_layernorm")
    return made | {f"{prefix}{name}.weight": _norm(hidden, random) for name in norms}


def _norm(size: int, random: torch.Generator) -> torch.Tensor:
    return 1 + 0.3 * torch.randn(size, generator=random)


def make_eagle3(shape: HeadShape, middle: str = "midlayer.") -> Tensors:
    """Weights of an EAGLE-3 head, the first layer named as asked."""
    random = torch.Generator().manual_seed(shape.seed)
    target, hidden = shape.target, shape.width
    count = 3 if shape.entering is None else len(shape.entering)
    features = count * target.hidden_size
    tensors = {
        "fc.weight": torch.randn(hidden, features, generator=random) / features**0.5,
        "norm.weight": _norm(hidden, random),
        "lm_head.weight": torch.randn(shape.vocab, hidden, generator=random),
        f"{middle}hidden_norm.weight": _norm(hidden, random),
        **_layer(shape, middle, 2 * hidden, random),
    }
    for layer in range(1, shape.num_layers):
        tensors |= _layer(shape, f"layers.{layer}.", hidden, random)
    if shape.norm_before_fc:
        tensors["input_norm.weight"] = _norm(features, random)
    if shape.fc_norm:
        tensors |= {f"fc_norm.{i}.weight": _norm(target.hidden_size, random) for i in range(count)}
    if shape.vocab != target.vocab_size:
        kept = torch.randperm(target.vocab_size, generator=random)[: shape.vocab].sort().values
        tensors["d2t"] = kept - torch.arange(shape.vocab)
        tensors["t2d"] = torch.zeros(target.vocab_size, dtype=torch.bool).index_fill_(0, kept, True)
    if hidden != target.hidden_size:
        tensors["embed_tokens.weight"] = torch.randn(target.vocab_size, hidden, generator=random)
    return tensors


def make_eagle1(shape: HeadShape, bias: bool = True) -> Tensors:
    """Weights of an EAGLE-1 head."""
    random = torch.Generator().manual_seed(shape.seed)
    hidden = shape.width
    tensors = {
        "fc.weight": torch.randn(hidden, 2 * hidden, generator=random) / (2 * hidden) ** 0.5,
        **_layer(shape, "layers.0.", hidden, random),
    }
    for layer in range(1, shape.num_layers):
        tensors |= _layer(shape, f"layers.{layer}.", hidden, random)
    if bias:
        tensors["fc.bias"] = torch.randn(hidden, generator=random)
    del tensors["layers.0.input_layernorm.weight"]
    return tensors


def flat_config(shape: HeadShape) -> dict[str, object]:
    """config.json as the authors of EAGLE-3 write it, and what others add where it is asked for."""
    config = {**layers_config(shape), "draft_vocab_size": shape.vocab}
    if shape.width != shape.target.hidden_size:
        config["target_hidden_size"] = shape.target.hidden_size
    if shape.entering is not None:
        config["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": [i - 1 for i in shape.entering]}
    for name in ("norm_before_residual", "norm_before_fc", "fc_norm"):
        if getattr(shape, name):
            config[name] = True
    return config


def speculators_config(shape: HeadShape) -> dict[str, object]:
    """config.json as `speculators` writes it."""
    return {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "transformer_layer_config": layers_config(shape),
        "draft_vocab_size": shape.vocab,
        "norm_before_residual": shape.norm_before_residual,
        "norm_before_fc": shape.norm_before_fc,
        "fc_norm": shape.fc_norm,
        "norm_output": shape.norm_output,
        "target_hidden_size": shape.target.hidden_size if shape.hidden else None,
        "eagle_aux_hidden_state_layer_ids": None if shape.entering is None else list(shape.entering),
        "speculators_config": {"algorithm": "eagle3", "default_proposal_method": "greedy"},
    }


def write_head(folder: Path, config: dict[str, object], tensors: Tensors, pickled: bool = False) -> Path:
    """Writes a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    if pickled:
        torch.save(tensors, folder / "pytorch_model.bin")
    else:
        save_file(
            {name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors"
        )
    return folder


@dataclass(slots=True)
class DenseHead:
    """What a head computes, by the definition: one entry after the other, each seeing those it is told to.

    EAGLE-3 heads are named `midlayer.`; a head without that name is an EAGLE-1 head.

    Attributes:
        entries: for each layer the keys and values so far, [heads that share, head_dim] each.
    """

    shape: HeadShape
    tensors: Tensors
    embedding: torch.Tensor
    lm_head: torch.Tensor
    entries: list[list[tuple[torch.Tensor, torch.Tensor]]] = field(init=False)
    is_third: bool = field(init=False)

    def __post_init__(self) -> None:
        self.entries = [[] for _ in range(self.shape.num_layers)]
        self.is_third = "midlayer.hidden_norm.weight" in self.tensors

    def fuse(self, feature: torch.Tensor) -> torch.Tensor:
        """Of one position's features."""
        if not self.is_third:
            return feature
        if "input_norm.weight" in self.tensors:
            feature = self._normed(feature, "input_norm")
        if self.shape.fc_norm:
            parts = feature.view(-1, self.shape.target.hidden_size)
            feature = torch.cat([self._normed(part, f"fc_norm.{i}") for i, part in enumerate(parts)])
        return self.tensors["fc.weight"] @ feature

    def add(self, token: int, hidden: torch.Tensor, position: int, seen: list[int]) -> torch.Tensor:
        """Adds an entry, which sees the earlier ones `seen` and itself; its output."""
        embedded = self.embedding[token]
        if self.is_third:
            normed = self._normed(hidden, "midlayer.hidden_norm")
            inputs = torch.cat((self._normed(embedded, "midlayer.input_layernorm"), normed))
            stream = normed if self.shape.norm_before_residual else hidden
        else:
            inputs = stream = self._linear(torch.cat((embedded, hidden)), "fc")
        for layer in range(self.shape.num_layers):
            first = "midlayer." if self.is_third else "layers.0."
            prefix = first if layer == 0 else f"layers.{layer}."
            if layer:
                inputs = self._normed(stream, f"{prefix}input_layernorm")
            stream = stream + self._attend(layer, prefix, inputs, position, seen)
            normed = self._normed(stream, f"{prefix}post_attention_layernorm")
            gate = torch.nn.functional.silu(self._linear(normed, f"{prefix}mlp.gate_proj"))
            up = self._linear(normed, f"{prefix}mlp.up_proj")
            stream = stream + self._linear(gate * up, f"{prefix}mlp.down_proj")
        return self._normed(stream, "norm") if self.shape.norm_output else stream

    def logits(self, output: torch.Tensor) -> torch.Tensor:
        """Of the draft vocabulary."""
        if not self.is_third:
            return self.lm_head @ output
        normed = output if self.shape.norm_output else self._normed(output, "norm")
        return self.tensors["lm_head.weight"] @ normed

    def token(self, draft: int) -> int:
        """The model's token of a draft."""
        return draft + int(self.tensors["d2t"][draft]) if "d2t" in self.tensors else draft

    def _attend(
        self, layer: int, prefix: str, inputs: torch.Tensor, position: int, seen: list[int]
    ) -> torch.Tensor:
        size = self.shape.target.head_dim
        query, key, value = (
            self._linear(inputs, f"{prefix}self_attn.{name}_proj").view(-1, size) for name in "qkv"
        )
        query, key = self._rotated(query, position), self._rotated(key, position)
        entries = self.entries[layer]
        entries.append((key, value))
        own = [entries[index] for index in (*seen, len(entries) - 1)]
        keys, values = (torch.stack(part) for part in zip(*own, strict=True))
        group = len(query) // len(key)
        heads = []
        for head, one in enumerate(query):
            weights = torch.softmax(keys[:, head // group] @ one / size**0.5, dim=0)
            heads.append(weights @ values[:, head // group])
        return self._linear(torch.cat(heads), f"{prefix}self_attn.o_proj")

    def _rotated(self, heads: torch.Tensor, position: int) -> torch.Tensor:
        half = heads.shape[1] // 2
        angles = position * self.shape.rope_theta ** (-torch.arange(half) / half)
        first, second = heads[:, :half], heads[:, half:]
        cos, sin = angles.cos(), angles.sin()
        return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=1)

    def _linear(self, inputs: torch.Tensor, module: str) -> torch.Tensor:
        result = self.tensors[f"{module}.weight"] @ inputs
        bias = self.tensors.get(f"{module}.bias")
        return result if bias is None else result + bias

    def _normed(self, inputs: torch.Tensor, module: str) -> torch.Tensor:
        scale = torch.rsqrt(inputs.pow(2).mean() + 1e-5)
        return inputs * scale * self.tensors[f"{module}.weight"]
