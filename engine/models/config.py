"""The shapes and constants of a decoder-only model, whatever its family."""

from __future__ import annotations

from dataclasses import dataclass

from engine.models.layer_groups import LayerGroup, layer_groups
from engine.ops.activation import Activation


@dataclass(frozen=True, slots=True)
class Divided:
    """Frequencies divided by `factor` (position interpolation)."""

    factor: float


@dataclass(frozen=True, slots=True)
class DividedEach:
    """Frequency of pair i divided by `factors[i]` (LongRoPE)."""

    factors: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Ramp:
    """Pairs up to `low` keep their frequency, those from `high` on are divided by `factor`, linear between
    (YaRN)."""

    factor: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Bands:
    """Wavelengths below `original_length / high` stay, those above `original_length / low` are divided by
    `factor`, and between the two both are blended (Llama 3.1)."""

    factor: float
    low: float
    high: float
    original_length: int


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary position embedding of a layer. `engine.models.rotary` computes it.

    Attributes:
        dim: leading dimensions of a head that are rotated, even.
        theta: the angle of pair i at position p is p * theta ** (-2 i / dim), where nothing is scaled.
        scaling: how these frequencies are scaled.
        magnitude: factor on cosine and sine.
    """

    dim: int
    theta: float
    scaling: Divided | DividedEach | Ramp | Bands | None = None
    magnitude: float = 1.0


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture of experts in place of a feed-forward layer.

    Attributes:
        count: experts of a layer.
        per_token: experts that each token goes to.
        intermediate_size: of one expert.
        normalized: whether the weights of a token's experts are made to sum to 1.
        layers: the layers that have experts; the others have one feed-forward of the model's own size.
    """

    count: int
    per_token: int
    intermediate_size: int
    normalized: bool
    layers: frozenset[int]


@dataclass(frozen=True, slots=True)
class Layout:
    """How a family's published checkpoints name the weights of a layer, below `model.layers.N.`.

    Attributes:
        qkv: the modules whose rows, one after the other, are query, key and value.
        gate_up: the modules whose rows, one after the other, are gate and up.
        feed_forward_norm: the norm before the feed-forward.
        attention_post_norm: norm of attention's result before it is added to the residual stream; "" where
            the family has none.
        feed_forward_post_norm: the same of the feed-forward's result.
        router: the matrix that chooses experts.
        expert: prefix of one expert, with `{}` for its number.
        expert_parts: gate, up and down of one expert.
    """

    qkv: tuple[str, ...] = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    gate_up: tuple[str, ...] = ("mlp.gate_proj", "mlp.up_proj")
    feed_forward_norm: str = "post_attention_layernorm"
    attention_post_norm: str = ""
    feed_forward_post_norm: str = ""
    router: str = "mlp.gate"
    expert: str = "mlp.experts.{}"
    expert_parts: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")

    def expert_modules(self, expert: int) -> tuple[str, str, str]:
        """Gate, up and down of one expert."""
        gate, up, down = (f"{self.expert.format(expert)}.{part}" for part in self.expert_parts)
        return gate, up, down


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """One model, as read from a Hugging Face `config.json` by its family's file.

    Sizes are counts of elements. What follows `bos_token_id` is what only some families have; its default
    is to be without.

    Attributes:
        max_position_embeddings: most tokens of a context, whatever scaling of rotary positions included.
        attention_scale: factor on the products of query and key.
        windows: for each layer how many tokens a token attends to, itself the last of them; 0 is all.
        ropes: for each layer its rotary embedding.
        attention_softcap: c of c * tanh(scores / c), applied to the scaled scores; 0 is none.
        logit_softcap: the same for the logits.
        embedding_scale: factor on the embeddings, rounded to their dtype.
        activation: of the feed-forward's gate.
        qkv_bias: whether query, key and value projections have a bias.
        output_bias: whether attention's output projection has one.
        mlp_bias: whether gate, up and down have one.
        head_norms: whether query and key heads are normed before rotation.
        norm_offset: added to the stored weights of all norms at loading.
        experts: None for a model without.
        layout: names in the checkpoint.
    """

    family: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float
    attention_scale: float
    windows: tuple[int, ...]
    ropes: tuple[Rope, ...]
    tie_word_embeddings: bool
    eos_token_ids: frozenset[int]
    bos_token_id: int | None
    attention_softcap: float = 0.0
    logit_softcap: float = 0.0
    embedding_scale: float = 1.0
    activation: Activation = Activation.SILU
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    head_norms: bool = False
    norm_offset: float = 0.0
    experts: Experts | None = None
    layout: Layout = Layout()

    @property
    def layer_groups(self) -> tuple[LayerGroup, ...]:
        """Layers that share blocks, the longest history first."""
        return layer_groups(self.windows)
