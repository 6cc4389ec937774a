"""Paged attention through the CPU kernels: fp32, over the blocks where they lie.

Beside quantised weights ("coarse") queries, keys, values and the softmax's weights are rounded to bfloat16
before they are multiplied, on CPUs that have instructions for it; sums and softmax stay fp32, and so does KV.

Online softmax over tiles of 64 keys at absolute positions, tiles of up to 192 rows (tokens x heads that share
a key head). Each row's sums run in one order, so its bits depend neither on the batch, nor on how the prompt
was cut into chunks, nor on the number of threads. Tiles are shared out among threads; few tiles over long
contexts are shared out by spans of 256 keys.
"""

from __future__ import annotations

import ctypes

import torch

from engine.attention.base import AttentionBackend
from engine.models.batch import ForwardBatch
from engine.models.config import ModelConfig
from engine.models.layer_groups import places
from engine.ops.base import Ops
from engine.ops.buffers import Buffers
from engine.ops.cpu.operations import AttendCall, Operation, Step
from engine.ops.cpu.ops import CpuOps
from engine.ops.cpu.tape import Stream

HEAD_DIM_MULTIPLE = 16
MAX_HEAD_DIM = 512


class CpuAttention:
    """See the module; implements `AttentionBackend`."""

    def __init__(self, config: ModelConfig, stream: Stream, coarse: bool = False) -> None:
        self._stream = stream
        self._coarse = coarse
        self._width = config.num_heads * config.head_dim
        self._scale = config.attention_scale
        self._softcap = config.attention_softcap
        self._windows = config.windows
        self._places = places(config.layer_groups)
        self._out = Buffers()
        # One for each layer group.
        self._steps = [
            Step(heads=config.num_heads, kv_heads=config.num_kv_heads, head_dim=config.head_dim)
            for _ in config.layer_groups
        ]
        self._step_pointers = [ctypes.pointer(step) for step in self._steps]

    def begin(self, batch: ForwardBatch, kv: torch.Tensor) -> None:
        """Describes the step to the kernels. Raises ValueError for a pool that is not fp32."""
        if kv.dtype is not torch.float32 or not kv.is_contiguous():
            raise ValueError(f"attention backend 'cpu' needs a contiguous float32 pool, not {kv.dtype}")
        starts = torch.tensor(batch.query_starts)
        contexts = torch.tensor(batch.context_lens)
        slots, tables = batch.slots.contiguous(), batch.block_tables.contiguous()
        slots_address, slots_bytes = slots.data_ptr(), slots.stride(0) * slots.itemsize
        tables_address, tables_bytes = tables.data_ptr(), tables.stride(0) * tables.itemsize
        trees = _tree_starts(batch)
        firsts = None if batch.first_keys is None else torch.tensor(batch.first_keys)
        visible = None if batch.visible is None else batch.visible.contiguous()
        positions = batch.positions.contiguous()
        for group, step in enumerate(self._steps):
            step.slots = slots_address + group * slots_bytes
            step.tables = tables_address + group * tables_bytes
            step.query_starts = starts.data_ptr()
            step.contexts = contexts.data_ptr()
            step.positions = positions.data_ptr()
            step.visible = _address(visible)
            step.tree_starts = _address(trees)
            step.first_keys = _address(firsts)
            step.kv = kv.data_ptr()
            step.tokens = slots.shape[1]
            step.sequences = len(contexts)
            step.table_width = tables.shape[2]
            step.block_size = kv.shape[4]
            step.block_stride = kv.stride(0)
            step.layer_stride = kv.stride(1)
        # Addresses are only good while their tensors live.
        self._alive = (slots, tables, starts, contexts, positions, visible, trees, firsts, kv)

    def attend(self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """Stores key and value, then attends; see `AttentionBackend`."""
        query, key, value = _heads_whole(query), _heads_whole(key), _heads_whole(value)
        if key.stride(0) != value.stride(0):
            key, value = key.contiguous(), value.contiguous()
        result, address = self._out.get(query.shape[0], self._width)
        group, place = self._places[layer]
        call = AttendCall(
            step=self._step_pointers[group],
            query=query.data_ptr(),
            key=key.data_ptr(),
            value=value.data_ptr(),
            out=address,
            query_stride=query.stride(0),
            key_stride=key.stride(0),
            place=place,
            window=self._windows[layer],
            coarse=self._coarse,
            scale=self._scale,
            softcap=self._softcap,
        )
        self._stream.issue(Operation.of(query.shape[0], call), (query, key, value), result)
        return result


def _tree_starts(batch: ForwardBatch) -> torch.Tensor | None:
    """The token that bit 0 stands for, [B]; None where no token has bits."""
    if batch.visible is None:
        return None
    if batch.tree_starts is not None:
        return torch.tensor(batch.tree_starts)
    starts = torch.tensor(batch.query_starts)
    return torch.tensor(batch.context_lens) - starts.diff()


def _address(tensor: torch.Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def _heads_whole(tensor: torch.Tensor) -> torch.Tensor:
    """Tokens may lie apart; the heads of one must not."""
    stride = tensor.stride()
    return tensor if stride[2] == 1 and stride[1] == tensor.shape[2] else tensor.contiguous()


def fits(config: ModelConfig) -> bool:
    """Whether the kernels take the model's heads."""
    return config.head_dim % HEAD_DIM_MULTIPLE == 0 and config.head_dim <= MAX_HEAD_DIM


def create(config: ModelConfig, ops: Ops, coarse: bool) -> AttentionBackend:
    """Makes the backend. Raises ValueError for other ops than the CPU's and for heads that do not fit."""
    if not isinstance(ops, CpuOps):
        raise ValueError("attention backend 'cpu' needs ops 'cpu'")
    if not fits(config):
        raise ValueError(
            f"attention backend 'cpu' needs a head_dim that is a multiple of {HEAD_DIM_MULTIPLE} and at most "
            f"{MAX_HEAD_DIM}, not {config.head_dim}"
        )
    return CpuAttention(config, ops.stream, coarse)
