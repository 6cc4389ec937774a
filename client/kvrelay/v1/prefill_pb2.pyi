from kvrelay.v1 import common_pb2 as _common_pb2
from kvrelay.v1 import worker_pb2 as _worker_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class KvTicket(_message.Message):
    __slots__ = ("ticket_id", "worker_id", "incarnation", "endpoint", "fingerprint", "layout", "num_tokens", "ttl_ms")
    TICKET_ID_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TTL_MS_FIELD_NUMBER: _ClassVar[int]
    ticket_id: str
    worker_id: str
    incarnation: int
    endpoint: str
    fingerprint: str
    layout: _worker_pb2.KvLayout
    num_tokens: int
    ttl_ms: int
    def __init__(self, ticket_id: _Optional[str] = ..., worker_id: _Optional[str] = ..., incarnation: _Optional[int] = ..., endpoint: _Optional[str] = ..., fingerprint: _Optional[str] = ..., layout: _Optional[_Union[_worker_pb2.KvLayout, _Mapping]] = ..., num_tokens: _Optional[int] = ..., ttl_ms: _Optional[int] = ...) -> None: ...

class StartRequest(_message.Message):
    __slots__ = ("request",)
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    request: _worker_pb2.WorkRequest
    def __init__(self, request: _Optional[_Union[_worker_pb2.WorkRequest, _Mapping]] = ...) -> None: ...

class StartResponse(_message.Message):
    __slots__ = ("ticket",)
    TICKET_FIELD_NUMBER: _ClassVar[int]
    ticket: KvTicket
    def __init__(self, ticket: _Optional[_Union[KvTicket, _Mapping]] = ...) -> None: ...

class FollowRequest(_message.Message):
    __slots__ = ("attach", "validate", "done", "abandon", "heartbeat")
    ATTACH_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    ABANDON_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    attach: Attach
    validate: Validate
    done: Done
    abandon: Abandon
    heartbeat: Heartbeat
    def __init__(self, attach: _Optional[_Union[Attach, _Mapping]] = ..., validate: _Optional[_Union[Validate, _Mapping]] = ..., done: _Optional[_Union[Done, _Mapping]] = ..., abandon: _Optional[_Union[Abandon, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ...) -> None: ...

class Attach(_message.Message):
    __slots__ = ("ticket_id", "worker_id", "incarnation", "identity", "layout", "transports")
    TICKET_ID_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    TRANSPORTS_FIELD_NUMBER: _ClassVar[int]
    ticket_id: str
    worker_id: str
    incarnation: int
    identity: _worker_pb2.Identity
    layout: _worker_pb2.KvLayout
    transports: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, ticket_id: _Optional[str] = ..., worker_id: _Optional[str] = ..., incarnation: _Optional[int] = ..., identity: _Optional[_Union[_worker_pb2.Identity, _Mapping]] = ..., layout: _Optional[_Union[_worker_pb2.KvLayout, _Mapping]] = ..., transports: _Optional[_Iterable[str]] = ...) -> None: ...

class Validate(_message.Message):
    __slots__ = ("generation",)
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    generation: int
    def __init__(self, generation: _Optional[int] = ...) -> None: ...

class Done(_message.Message):
    __slots__ = ("generation",)
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    generation: int
    def __init__(self, generation: _Optional[int] = ...) -> None: ...

class Abandon(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ("steps",)
    STEPS_FIELD_NUMBER: _ClassVar[int]
    steps: int
    def __init__(self, steps: _Optional[int] = ...) -> None: ...

class FollowEvent(_message.Message):
    __slots__ = ("attached", "kv_ready", "finished", "validated", "revoked", "heartbeat")
    ATTACHED_FIELD_NUMBER: _ClassVar[int]
    KV_READY_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    VALIDATED_FIELD_NUMBER: _ClassVar[int]
    REVOKED_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    attached: Attached
    kv_ready: KvReady
    finished: Finished
    validated: Validated
    revoked: Revoked
    heartbeat: Heartbeat
    def __init__(self, attached: _Optional[_Union[Attached, _Mapping]] = ..., kv_ready: _Optional[_Union[KvReady, _Mapping]] = ..., finished: _Optional[_Union[Finished, _Mapping]] = ..., validated: _Optional[_Union[Validated, _Mapping]] = ..., revoked: _Optional[_Union[Revoked, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ...) -> None: ...

class Attached(_message.Message):
    __slots__ = ("generation", "identity", "layout", "transport", "pool", "pid")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    TRANSPORT_FIELD_NUMBER: _ClassVar[int]
    POOL_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    generation: int
    identity: _worker_pb2.Identity
    layout: _worker_pb2.KvLayout
    transport: str
    pool: bytes
    pid: int
    def __init__(self, generation: _Optional[int] = ..., identity: _Optional[_Union[_worker_pb2.Identity, _Mapping]] = ..., layout: _Optional[_Union[_worker_pb2.KvLayout, _Mapping]] = ..., transport: _Optional[str] = ..., pool: _Optional[bytes] = ..., pid: _Optional[int] = ...) -> None: ...

class KvReady(_message.Message):
    __slots__ = ("num_tokens", "block_ids", "start_unix_ns", "end_unix_ns")
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_IDS_FIELD_NUMBER: _ClassVar[int]
    START_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    END_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    num_tokens: int
    block_ids: _containers.RepeatedScalarFieldContainer[int]
    start_unix_ns: int
    end_unix_ns: int
    def __init__(self, num_tokens: _Optional[int] = ..., block_ids: _Optional[_Iterable[int]] = ..., start_unix_ns: _Optional[int] = ..., end_unix_ns: _Optional[int] = ...) -> None: ...

class Finished(_message.Message):
    __slots__ = ("first_token_id", "cached_tokens", "queue_s", "prefill_s", "first_logprobs", "prompt_logprobs", "carried")
    FIRST_TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_S_FIELD_NUMBER: _ClassVar[int]
    PREFILL_S_FIELD_NUMBER: _ClassVar[int]
    FIRST_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    CARRIED_FIELD_NUMBER: _ClassVar[int]
    first_token_id: int
    cached_tokens: int
    queue_s: float
    prefill_s: float
    first_logprobs: _common_pb2.TokenLogprobs
    prompt_logprobs: _containers.RepeatedCompositeFieldContainer[_common_pb2.TokenLogprobs]
    carried: bytes
    def __init__(self, first_token_id: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., queue_s: _Optional[float] = ..., prefill_s: _Optional[float] = ..., first_logprobs: _Optional[_Union[_common_pb2.TokenLogprobs, _Mapping]] = ..., prompt_logprobs: _Optional[_Iterable[_Union[_common_pb2.TokenLogprobs, _Mapping]]] = ..., carried: _Optional[bytes] = ...) -> None: ...

class Validated(_message.Message):
    __slots__ = ("generation", "valid")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    VALID_FIELD_NUMBER: _ClassVar[int]
    generation: int
    valid: bool
    def __init__(self, generation: _Optional[int] = ..., valid: _Optional[bool] = ...) -> None: ...

class Revoked(_message.Message):
    __slots__ = ("reason", "retryable")
    REASON_FIELD_NUMBER: _ClassVar[int]
    RETRYABLE_FIELD_NUMBER: _ClassVar[int]
    reason: str
    retryable: bool
    def __init__(self, reason: _Optional[str] = ..., retryable: _Optional[bool] = ...) -> None: ...

class ReleaseRequest(_message.Message):
    __slots__ = ("ticket_id", "incarnation")
    TICKET_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    ticket_id: str
    incarnation: int
    def __init__(self, ticket_id: _Optional[str] = ..., incarnation: _Optional[int] = ...) -> None: ...

class ReleaseResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
