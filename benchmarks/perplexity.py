"""How much quantisation costs in quality: perplexity against fp32 on the project's own prose and code.

    python -m benchmarks.perplexity MODEL_DIR [--quantization int8]

Exits non-zero where the perplexity is more than 3% above that of fp32.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import torch
from tokenizers import Tokenizer

from benchmarks.bars import Bars
from engine.kv.storage import allocate_pool
from engine.models.base import CausalLM
from engine.models.batch import ForwardBatch
from engine.models.loader import load_model
from engine.quantization.registry import NAMES, PLAIN

ROOT = Path(__file__).resolve().parents[1]
TEXTS = ("docs/architecture.md", "docs/handover.md", "engine/kv/block_pool.py")
MAX_INCREASE = 1.03
_WINDOW = 1024
_BLOCK_SIZE = 16


def text_token_ids(model_dir: Path) -> list[list[int]]:
    """The texts, in pieces of at most 1,024 tokens."""
    tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
    pieces = []
    for name in TEXTS:
        ids = tokenizer.encode((ROOT / name).read_text(), add_special_tokens=True).ids
        pieces += [ids[start : start + _WINDOW] for start in range(0, len(ids), _WINDOW)]
    return [piece for piece in pieces if len(piece) > 1]


def perplexity(model: CausalLM, pieces: list[list[int]]) -> float:
    """exp of the mean negative log likelihood of each piece's tokens after its first."""
    # Each layer group has a run of blocks for the whole text.
    num_pages, num_groups = _WINDOW // _BLOCK_SIZE, len(model.config.layer_groups)
    kv = allocate_pool(model.config, num_pages * num_groups, _BLOCK_SIZE, torch.float32)
    tables = torch.arange(1, num_pages * num_groups + 1).view(num_groups, 1, num_pages)
    loss, count = 0.0, 0
    for piece in pieces:
        length = len(piece)
        batch = ForwardBatch(
            token_ids=torch.tensor(piece),
            positions=torch.arange(length),
            slots=tables[:, 0, :1] * _BLOCK_SIZE + torch.arange(length),
            query_starts=(0, length),
            context_lens=(length,),
            block_tables=tables,
            logits_rows=torch.arange(length),
        )
        likelihoods = torch.log_softmax(model.forward(batch, kv)[:-1], dim=-1)
        loss -= likelihoods.gather(1, torch.tensor(piece[1:])[:, None]).sum().item()
        count += length - 1
    return math.exp(loss / count)


def main() -> None:
    """Measures and judges."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model_dir", type=Path)
    parser.add_argument("--quantization", choices=NAMES, default="int8")
    arguments = parser.parse_args()
    pieces = text_token_ids(arguments.model_dir)
    plain, quantized = (
        perplexity(load_model(arguments.model_dir, quantization=name), pieces)
        for name in (PLAIN, arguments.quantization)
    )
    print(f"{sum(map(len, pieces))} tokens: fp32 {plain:.3f}, {arguments.quantization} {quantized:.3f}")
    bars = Bars()
    bars.require(
        quantized <= MAX_INCREASE * plain, f"perplexity {quantized:.3f} is at most 3% above {plain:.3f}"
    )
    bars.exit()


if __name__ == "__main__":
    main()
