"""Operations as the kernels take them: the mirror of operations.h, where each field is described."""

from __future__ import annotations

import ctypes
from enum import IntEnum

_POINTER, _LONG, _FLOAT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float


class Step(ctypes.Structure):
    """What all layers of a step share: `Step` of attention.h. Pointers are to int64 arrays, or none."""

    _fields_ = (
        ("slots", _POINTER),
        ("tables", _POINTER),
        ("query_starts", _POINTER),
        ("contexts", _POINTER),
        ("positions", _POINTER),
        ("visible", _POINTER),
        ("tree_starts", _POINTER),
        ("first_keys", _POINTER),
        ("kv", _POINTER),
        ("tokens", _LONG),
        ("sequences", _LONG),
        ("table_width", _LONG),
        ("heads", _LONG),
        ("kv_heads", _LONG),
        ("head_dim", _LONG),
        ("block_size", _LONG),
        ("block_stride", _LONG),
        ("layer_stride", _LONG),
    )


class Form(IntEnum):
    """What becomes of a linear layer's sums."""

    WRITTEN = 0
    ADDED = 1
    SILU = 2
    GELU = 3


class LinearCall(ctypes.Structure):
    """A linear layer, plain or gated, fp32 or int8."""

    _fields_ = (
        ("x", _POINTER),
        ("norm", _POINTER),
        ("panels", _POINTER),
        ("scales", _POINTER),
        ("bias", _POINTER),
        ("out", _POINTER),
        ("inputs", _LONG),
        ("columns", _LONG),
        ("form", _LONG),
        ("eps", _FLOAT),
    )


class RotateCall(ctypes.Structure):
    """Norms and rotation of query and key heads."""

    _fields_ = (
        ("heads", _POINTER),
        ("cos", _POINTER),
        ("sin", _POINTER),
        ("query_norm", _POINTER),
        ("key_norm", _POINTER),
        ("stride", _LONG),
        ("num_query", _LONG),
        ("num_key", _LONG),
        ("head_dim", _LONG),
        ("half", _LONG),
        ("query_eps", _FLOAT),
        ("key_eps", _FLOAT),
    )


class AttendCall(ctypes.Structure):
    """Attention of one layer."""

    _fields_ = (
        ("step", ctypes.POINTER(Step)),
        ("query", _POINTER),
        ("key", _POINTER),
        ("value", _POINTER),
        ("out", _POINTER),
        ("query_stride", _LONG),
        ("key_stride", _LONG),
        ("place", _LONG),
        ("window", _LONG),
        ("coarse", _LONG),
        ("scale", _FLOAT),
        ("softcap", _FLOAT),
    )


class NormCall(ctypes.Structure):
    """A norm, which is written or added."""

    _fields_ = (
        ("x", _POINTER),
        ("weight", _POINTER),
        ("out", _POINTER),
        ("width", _LONG),
        ("add", _LONG),
        ("eps", _FLOAT),
    )


class CopyCall(ctypes.Structure):
    """Rows into columns of others."""

    _fields_ = (("x", _POINTER), ("out", _POINTER), ("width", _LONG), ("stride", _LONG))


class _Arguments(ctypes.Union):
    _fields_ = (
        ("linear", LinearCall),
        ("rotate", RotateCall),
        ("attend", AttendCall),
        ("norm", NormCall),
        ("copy", CopyCall),
    )


class Operation(ctypes.Structure):
    """One operation over so many rows. For attention they follow from its step."""

    _anonymous_ = ("arguments",)
    _fields_ = (("kind", _LONG), ("rows", _LONG), ("arguments", _Arguments))

    @classmethod
    def of(cls, rows: int, call: LinearCall | RotateCall | AttendCall | NormCall | CopyCall) -> Operation:
        """The operation that computes this."""
        kind, name = _KINDS[type(call)]
        operation = cls(kind, rows)
        setattr(operation, name, call)
        return operation


_KINDS: dict[type, tuple[int, str]] = {
    LinearCall: (0, "linear"),
    RotateCall: (1, "rotate"),
    AttendCall: (2, "attend"),
    NormCall: (3, "norm"),
    CopyCall: (4, "copy"),
}
