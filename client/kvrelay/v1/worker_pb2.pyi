from kvrelay.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class WorkerRole(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    WORKER_ROLE_UNSPECIFIED: _ClassVar[WorkerRole]
    WORKER_ROLE_PREFILL: _ClassVar[WorkerRole]
    WORKER_ROLE_DECODE: _ClassVar[WorkerRole]
WORKER_ROLE_UNSPECIFIED: WorkerRole
WORKER_ROLE_PREFILL: WorkerRole
WORKER_ROLE_DECODE: WorkerRole

class Identity(_message.Message):
    __slots__ = ("model", "revision", "dtype", "block_size", "layer_groups", "draft", "hash_version")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    LAYER_GROUPS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_FIELD_NUMBER: _ClassVar[int]
    HASH_VERSION_FIELD_NUMBER: _ClassVar[int]
    model: str
    revision: str
    dtype: str
    block_size: int
    layer_groups: _containers.RepeatedCompositeFieldContainer[LayerGroup]
    draft: str
    hash_version: int
    def __init__(self, model: _Optional[str] = ..., revision: _Optional[str] = ..., dtype: _Optional[str] = ..., block_size: _Optional[int] = ..., layer_groups: _Optional[_Iterable[_Union[LayerGroup, _Mapping]]] = ..., draft: _Optional[str] = ..., hash_version: _Optional[int] = ...) -> None: ...

class LayerGroup(_message.Message):
    __slots__ = ("name", "num_layers", "num_kv_heads", "head_dim", "sliding_window")
    NAME_FIELD_NUMBER: _ClassVar[int]
    NUM_LAYERS_FIELD_NUMBER: _ClassVar[int]
    NUM_KV_HEADS_FIELD_NUMBER: _ClassVar[int]
    HEAD_DIM_FIELD_NUMBER: _ClassVar[int]
    SLIDING_WINDOW_FIELD_NUMBER: _ClassVar[int]
    name: str
    num_layers: int
    num_kv_heads: int
    head_dim: int
    sliding_window: int
    def __init__(self, name: _Optional[str] = ..., num_layers: _Optional[int] = ..., num_kv_heads: _Optional[int] = ..., head_dim: _Optional[int] = ..., sliding_window: _Optional[int] = ...) -> None: ...

class KvLayout(_message.Message):
    __slots__ = ("tensor_parallel_size", "first_head", "num_heads", "block_bytes")
    TENSOR_PARALLEL_SIZE_FIELD_NUMBER: _ClassVar[int]
    FIRST_HEAD_FIELD_NUMBER: _ClassVar[int]
    NUM_HEADS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_BYTES_FIELD_NUMBER: _ClassVar[int]
    tensor_parallel_size: int
    first_head: int
    num_heads: int
    block_bytes: int
    def __init__(self, tensor_parallel_size: _Optional[int] = ..., first_head: _Optional[int] = ..., num_heads: _Optional[int] = ..., block_bytes: _Optional[int] = ...) -> None: ...

class DescribeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WorkerInfo(_message.Message):
    __slots__ = ("worker_id", "incarnation", "role", "endpoint", "pid", "node_id", "identity", "layout", "num_blocks", "max_model_len", "metrics_url", "model_context_tokens", "draft_methods")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    MAX_MODEL_LEN_FIELD_NUMBER: _ClassVar[int]
    METRICS_URL_FIELD_NUMBER: _ClassVar[int]
    MODEL_CONTEXT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_METHODS_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    incarnation: int
    role: WorkerRole
    endpoint: str
    pid: int
    node_id: str
    identity: Identity
    layout: KvLayout
    num_blocks: int
    max_model_len: int
    metrics_url: str
    model_context_tokens: int
    draft_methods: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, worker_id: _Optional[str] = ..., incarnation: _Optional[int] = ..., role: _Optional[_Union[WorkerRole, str]] = ..., endpoint: _Optional[str] = ..., pid: _Optional[int] = ..., node_id: _Optional[str] = ..., identity: _Optional[_Union[Identity, _Mapping]] = ..., layout: _Optional[_Union[KvLayout, _Mapping]] = ..., num_blocks: _Optional[int] = ..., max_model_len: _Optional[int] = ..., metrics_url: _Optional[str] = ..., model_context_tokens: _Optional[int] = ..., draft_methods: _Optional[_Iterable[str]] = ...) -> None: ...

class WatchRequest(_message.Message):
    __slots__ = ("interval_ms",)
    INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    interval_ms: int
    def __init__(self, interval_ms: _Optional[int] = ...) -> None: ...

class WorkerReport(_message.Message):
    __slots__ = ("worker_id", "incarnation", "steps", "engine_silent_s", "draining", "stats")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    ENGINE_SILENT_S_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    STATS_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    incarnation: int
    steps: int
    engine_silent_s: float
    draining: bool
    stats: WorkerStats
    def __init__(self, worker_id: _Optional[str] = ..., incarnation: _Optional[int] = ..., steps: _Optional[int] = ..., engine_silent_s: _Optional[float] = ..., draining: _Optional[bool] = ..., stats: _Optional[_Union[WorkerStats, _Mapping]] = ...) -> None: ...

class WorkerStats(_message.Message):
    __slots__ = ("running", "waiting", "queued_prefill_tokens", "blocks_total", "blocks_free", "blocks_cached", "blocks_pinned", "blocks_quarantined", "leases", "prompt_tokens_total", "cached_tokens_total", "generated_tokens_total", "preemptions_total", "transfer_bytes_total", "transfer_seconds_total", "swaps_total", "swap_blocks_total", "swap_blocks_used", "swapped_out_blocks_total", "swapped_in_blocks_total")
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    QUEUED_PREFILL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FREE_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_CACHED_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_PINNED_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_QUARANTINED_FIELD_NUMBER: _ClassVar[int]
    LEASES_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    GENERATED_TOKENS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    PREEMPTIONS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_BYTES_TOTAL_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_SECONDS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    SWAPS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    SWAP_BLOCKS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    SWAP_BLOCKS_USED_FIELD_NUMBER: _ClassVar[int]
    SWAPPED_OUT_BLOCKS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    SWAPPED_IN_BLOCKS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    running: int
    waiting: int
    queued_prefill_tokens: int
    blocks_total: int
    blocks_free: int
    blocks_cached: int
    blocks_pinned: int
    blocks_quarantined: int
    leases: int
    prompt_tokens_total: int
    cached_tokens_total: int
    generated_tokens_total: int
    preemptions_total: int
    transfer_bytes_total: int
    transfer_seconds_total: float
    swaps_total: int
    swap_blocks_total: int
    swap_blocks_used: int
    swapped_out_blocks_total: int
    swapped_in_blocks_total: int
    def __init__(self, running: _Optional[int] = ..., waiting: _Optional[int] = ..., queued_prefill_tokens: _Optional[int] = ..., blocks_total: _Optional[int] = ..., blocks_free: _Optional[int] = ..., blocks_cached: _Optional[int] = ..., blocks_pinned: _Optional[int] = ..., blocks_quarantined: _Optional[int] = ..., leases: _Optional[int] = ..., prompt_tokens_total: _Optional[int] = ..., cached_tokens_total: _Optional[int] = ..., generated_tokens_total: _Optional[int] = ..., preemptions_total: _Optional[int] = ..., transfer_bytes_total: _Optional[int] = ..., transfer_seconds_total: _Optional[float] = ..., swaps_total: _Optional[int] = ..., swap_blocks_total: _Optional[int] = ..., swap_blocks_used: _Optional[int] = ..., swapped_out_blocks_total: _Optional[int] = ..., swapped_in_blocks_total: _Optional[int] = ...) -> None: ...

class DrainRequest(_message.Message):
    __slots__ = ("timeout_s",)
    TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    timeout_s: float
    def __init__(self, timeout_s: _Optional[float] = ...) -> None: ...

class DrainResponse(_message.Message):
    __slots__ = ("remaining",)
    REMAINING_FIELD_NUMBER: _ClassVar[int]
    remaining: int
    def __init__(self, remaining: _Optional[int] = ...) -> None: ...

class WorkRequest(_message.Message):
    __slots__ = ("request_id", "attempt", "prompt_token_ids", "resumed_token_ids", "sampling", "cache_salt", "deadline_unix_ms", "trace", "priority", "speculation")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    RESUMED_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    TRACE_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    SPECULATION_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    attempt: int
    prompt_token_ids: _containers.RepeatedScalarFieldContainer[int]
    resumed_token_ids: _containers.RepeatedScalarFieldContainer[int]
    sampling: _common_pb2.SamplingParams
    cache_salt: str
    deadline_unix_ms: int
    trace: bool
    priority: int
    speculation: Speculation
    def __init__(self, request_id: _Optional[str] = ..., attempt: _Optional[int] = ..., prompt_token_ids: _Optional[_Iterable[int]] = ..., resumed_token_ids: _Optional[_Iterable[int]] = ..., sampling: _Optional[_Union[_common_pb2.SamplingParams, _Mapping]] = ..., cache_salt: _Optional[str] = ..., deadline_unix_ms: _Optional[int] = ..., trace: _Optional[bool] = ..., priority: _Optional[int] = ..., speculation: _Optional[_Union[Speculation, _Mapping]] = ...) -> None: ...

class Speculation(_message.Message):
    __slots__ = ("method", "num_speculative_tokens")
    METHOD_FIELD_NUMBER: _ClassVar[int]
    NUM_SPECULATIVE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    method: str
    num_speculative_tokens: int
    def __init__(self, method: _Optional[str] = ..., num_speculative_tokens: _Optional[int] = ...) -> None: ...
