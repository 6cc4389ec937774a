"""Loads Medusa heads in the authors' layout. Strict: every weight is accounted for.

`medusa_lm_head.pt` holds `{head}.{block}.linear.weight` and `.bias` of the residual blocks of each head, and
behind these `{head}.{blocks}.weight`, its LM head. Published configs are known to tell another number of
heads than there are weights for, so the weights count, and a config that says otherwise is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import torch

from engine.models.base import DraftedLM
from engine.models.checkpoint import SINGLE_FILE, read_json
from engine.models.config import ModelConfig
from engine.models.errors import CheckpointError
from engine.models.registry import CONFIG_FILE
from engine.models.weights import Shapes
from engine.ops.base import Linear
from engine.quantization.int8 import Int8Weight
from engine.quantization.registry import PLAIN
from engine.quantization.registry import quantization as quantization_of
from engine.speculation.base import Drafter, Target
from engine.speculation.config import COUPLED, SpeculationConfig
from engine.speculation.draft_weights import draft_quantization
from engine.speculation.head_files import FLOATS, Tensors, naming, read_head
from engine.speculation.medusa.choices import default_choices, in_order
from engine.speculation.medusa.drafter import MedusaDrafter
from engine.speculation.medusa.heads import MedusaHead, MedusaHeads
from engine.speculation.settings import check_tree, max_drafts

FILES = ("medusa_lm_head.safetensors", SINGLE_FILE, "medusa_lm_head.pt")
"""Where the heads may be; the first that is there is read."""

_BLOCK = re.compile(r"(\d+)\.(\d+)\.linear\.(weight|bias)")
_LM_HEAD = re.compile(r"(\d+)\.(\d+)\.weight")


def create_medusa(config: SpeculationConfig, target: Target) -> Drafter:
    """Loads heads and makes their drafter.

    Raises:
        ValueError: settings out of bounds, or none that names the heads' folder.
        ModelError: no such heads, or some that are broken or made for another model.
    """
    check_tree(config)
    if config.model is None:
        raise ValueError(f"model must name the folder of heads for method {config.method!r}")
    heads = load_heads(
        config.model, target.model, quantization=draft_quantization(target.settings, target.model)
    )
    if config.num_speculative_tokens > len(heads):
        raise ValueError(
            f"num_speculative_tokens is {config.num_speculative_tokens}, but must be at most {len(heads)}: "
            f"so many heads are in {config.model}"
        )
    bounds = (config.num_speculative_tokens, config.eagle_topk, max_drafts(config))
    choices = in_order(config.medusa_choices, *bounds) or default_choices(*bounds)
    embedding = target.model.shared().embedding
    return MedusaDrafter(heads, choices, embedding, config.verification == COUPLED)


def load_heads(folder: Path, model: DraftedLM, *, quantization: str = PLAIN) -> MedusaHeads:
    """Loads heads: dtype, device and operations are the model's.

    Args:
        folder: of the heads.
        model: that they draft for.
        quantization: name in `engine.quantization.registry`: how their weights are stored.

    Raises:
        CheckpointError: no such heads, or weights that are missing, unknown, misshapen or corrupt.
        ValueError: no such quantization.
    """
    if not folder.is_dir():
        raise CheckpointError(f"folder {folder} of the draft heads does not exist")
    tensors = read_head(folder, FILES)
    try:
        num_heads, num_blocks = _count(tensors)
        _check(tensors, _expected(num_heads, num_blocks, model.config))
        if (folder / CONFIG_FILE).exists():
            config = read_json(folder / CONFIG_FILE)
            _agree(config, "medusa_num_heads", num_heads, "heads")
            _agree(config, "medusa_num_layers", num_blocks, "residual blocks to a head")
    except CheckpointError as error:
        raise CheckpointError(f"{folder}: {error}") from None
    pack = _Packer(tensors, model, quantization_of(quantization))
    heads = [
        MedusaHead(
            blocks=tuple(
                pack.linear(f"{head}.{block}.linear.weight", f"{head}.{block}.linear.bias")
                for block in range(num_blocks)
            ),
            lm_head=pack.linear(f"{head}.{num_blocks}.weight"),
        )
        for head in range(num_heads)
    ]
    return MedusaHeads(heads, model.shared().ops)


def _count(tensors: Tensors) -> tuple[int, int]:
    """Heads, and residual blocks of each, as the weights' names say."""
    blocks = [match for name in tensors if (match := _BLOCK.fullmatch(name))]
    lm_heads = [match for name in tensors if (match := _LM_HEAD.fullmatch(name))]
    if not lm_heads:
        raise CheckpointError(
            f"no Medusa heads: there is no weight like '0.1.weight', but {naming(sorted(tensors))}"
        )
    num_heads = 1 + max(int(match[1]) for match in (*blocks, *lm_heads))
    return num_heads, max((1 + int(match[2]) for match in blocks), default=0)


def _expected(num_heads: int, num_blocks: int, model: ModelConfig) -> Shapes:
    hidden = model.hidden_size
    shapes: Shapes = {}
    for head in range(num_heads):
        for block in range(num_blocks):
            shapes[f"{head}.{block}.linear.weight"] = (hidden, hidden)
            shapes[f"{head}.{block}.linear.bias"] = (hidden,)
        shapes[f"{head}.{num_blocks}.weight"] = (model.vocab_size, hidden)
    return shapes


def _check(tensors: Tensors, expected: Shapes) -> None:
    missing = [name for name in expected if name not in tensors]
    if missing:
        raise CheckpointError(f"{naming(missing)} missing")
    unknown = [name for name in tensors if name not in expected]
    if unknown:
        raise CheckpointError(f"{naming(unknown)} unknown to Medusa heads")
    for name, shape in expected.items():
        tensor = tensors[name]
        if tensor.shape != shape:
            raise CheckpointError(
                f"weight {name!r} has shape {list(tensor.shape)} where the model wants {list(shape)}"
            )
        if tensor.dtype not in FLOATS:
            raise CheckpointError(f"weight {name!r} is stored as {tensor.dtype}, which is not supported")


def _agree(config: dict[str, object], name: str, found: int, what: str) -> None:
    told = config.get(name, found)
    if told != found:
        raise CheckpointError(
            f"{CONFIG_FILE} says {name} is {told}, but the weights hold {found} {what}: set it to {found} if "
            "the file is the right one"
        )


class _Packer:
    """Lays tensors out for a model's operations, stored as `store` says."""

    def __init__(
        self, tensors: Tensors, model: DraftedLM, store: Callable[[torch.Tensor], torch.Tensor | Int8Weight]
    ) -> None:
        self._tensors = tensors
        self._shared = model.shared()
        self._store = store

    def linear(self, weight: str, bias: str | None = None) -> Linear:
        """The layer of two named tensors."""
        own = None if bias is None else self._tensor(bias)
        return self._shared.ops.pack(self._store(self._tensor(weight)), own)

    def _tensor(self, name: str) -> torch.Tensor:
        like = self._shared.embedding
        return self._tensors[name].to(like.device, like.dtype)
