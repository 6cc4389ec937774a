"""How much of a model one decode step must read."""

from __future__ import annotations

import json
import math
from pathlib import Path

from safetensors import safe_open

FP32_BYTES = 4
EMBEDDING = "model.embed_tokens.weight"


def bytes_read_per_token(model_dir: Path) -> int:
    """Bytes of all fp32 weights that a step at batch 1 multiplies with.

    An input embedding that is no output matrix as well is left out: of it one row is read.
    """
    tied = json.loads((model_dir / "config.json").read_text()).get("tie_word_embeddings", False)
    parameters = 0
    for file in model_dir.glob("*.safetensors"):
        with safe_open(file, framework="numpy") as weights:
            for name in weights.keys():  # noqa: SIM118 - no mapping
                if tied or name != EMBEDDING:
                    parameters += math.prod(weights.get_slice(name).get_shape())
    return parameters * FP32_BYTES
