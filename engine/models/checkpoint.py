"""What a Hugging Face folder says about its weights, read from safetensors headers alone.

A safetensors file is 8 bytes of header length (little endian), a JSON header that gives each tensor's
dtype, shape and byte range, then the bytes (https://github.com/huggingface/safetensors, "Format"). Sharded
checkpoints add `model.safetensors.index.json`, whose `weight_map` names each tensor's file.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from engine.models.errors import CheckpointError

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
_MAX_HEADER_BYTES = 100_000_000
_DTYPE_BYTES = {
    "F64": 8,
    "F32": 4,
    "F16": 2,
    "BF16": 2,
    "I64": 8,
    "I32": 4,
    "I16": 2,
    "I8": 1,
    "U8": 1,
    "BOOL": 1,
}


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One stored tensor. `start` and `end` are byte offsets into `file`; `dtype` is safetensors' name."""

    file: Path
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The tensors of a folder by name, and the files that hold them, in order of name."""

    files: tuple[Path, ...]
    tensors: Mapping[str, TensorEntry]


def read_json(path: Path) -> dict[str, object]:
    """Reads a JSON object. Raises CheckpointError naming the file for anything else."""
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing") from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} does not hold a JSON object")
    return value


def read_checkpoint(model_dir: Path) -> Checkpoint:
    """Reads the headers of all weight files.

    Raises:
        CheckpointError: no weights, a missing shard, a corrupt or truncated file, or an index and shards
            that disagree.
    """
    index_path = model_dir / INDEX_FILE
    if index_path.exists():
        return _read_sharded(model_dir, index_path)
    path = model_dir / SINGLE_FILE
    if not path.exists():
        other = sorted(
            p.name for pattern in ("*.bin", "*.gguf", "*.safetensors") for p in model_dir.glob(pattern)
        )
        found = f" (found {', '.join(other)})" if other else ""
        raise CheckpointError(f"{model_dir} has neither {SINGLE_FILE} nor {INDEX_FILE}{found}")
    return Checkpoint((path,), _read_header(path))


def _read_sharded(model_dir: Path, index_path: Path) -> Checkpoint:
    weight_map = read_json(index_path).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{index_path} has no weight_map")
    shards = sorted({str(name) for name in weight_map.values()})
    tensors: dict[str, TensorEntry] = {}
    for shard in shards:
        if Path(shard).name != shard:
            raise CheckpointError(f"{index_path} names {shard!r}, which is not a file of its own folder")
        path = model_dir / shard
        if not path.exists():
            raise CheckpointError(f"{path}, named in {INDEX_FILE}, is missing")
        for name, entry in _read_header(path).items():
            if weight_map.get(name) != shard:
                raise CheckpointError(
                    f"{path} holds weight {name!r}, which {INDEX_FILE} does not place there"
                )
            tensors[name] = entry
    for name, shard in weight_map.items():
        if name not in tensors:
            raise CheckpointError(
                f"weight {name!r} is missing from {model_dir / str(shard)}, where {INDEX_FILE} puts it"
            )
    return Checkpoint(tuple(model_dir / shard for shard in shards), tensors)


def _read_header(path: Path) -> dict[str, TensorEntry]:
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or not 2 <= length <= min(size - 8, _MAX_HEADER_BYTES):
            raise CheckpointError(f"{path} is not a safetensors file, or is cut short ({size} bytes)")
        try:
            header = json.loads(file.read(length))
            entries = {
                name: _entry(path, name, raw, 8 + length)
                for name, raw in header.items()
                if name != "__metadata__"
            }
        except (ValueError, AttributeError, KeyError, TypeError) as error:
            if isinstance(error, CheckpointError):
                raise
            raise CheckpointError(f"{path} has a corrupt safetensors header: {error}") from error
    end = max((entry.end for entry in entries.values()), default=8 + length)
    if end != size:
        raise CheckpointError(
            f"{path} is {size} bytes long where its header wants {end}: cut short or corrupt"
        )
    return entries


def _entry(path: Path, name: str, raw: dict[str, object], data_start: int) -> TensorEntry:
    dtype, shape, offsets = raw["dtype"], raw["shape"], raw["data_offsets"]
    if not isinstance(dtype, str) or not isinstance(shape, list) or not isinstance(offsets, list):
        raise TypeError(f"entry of {name!r}")
    start, end = (int(offset) for offset in offsets)
    dims = tuple(int(dim) for dim in shape)
    item = _DTYPE_BYTES.get(dtype)
    if start < 0 or end < start or (item is not None and end - start != item * math.prod(dims)):
        raise CheckpointError(
            f"{path}: weight {name!r} has a byte range that does not fit {dtype} {list(dims)}"
        )
    return TensorEntry(path, dtype, dims, data_start + start, data_start + end)
