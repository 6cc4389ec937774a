from kvrelay.v1 import common_pb2 as _common_pb2
from kvrelay.v1 import prefill_pb2 as _prefill_pb2
from kvrelay.v1 import worker_pb2 as _worker_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DecodeCommand(_message.Message):
    __slots__ = ("hello", "submit", "cancel", "heartbeat")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    SUBMIT_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    submit: Submit
    cancel: Cancel
    heartbeat: _prefill_pb2.Heartbeat
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., submit: _Optional[_Union[Submit, _Mapping]] = ..., cancel: _Optional[_Union[Cancel, _Mapping]] = ..., heartbeat: _Optional[_Union[_prefill_pb2.Heartbeat, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("router_id",)
    ROUTER_ID_FIELD_NUMBER: _ClassVar[int]
    router_id: str
    def __init__(self, router_id: _Optional[str] = ...) -> None: ...

class Submit(_message.Message):
    __slots__ = ("request", "ticket")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    TICKET_FIELD_NUMBER: _ClassVar[int]
    request: _worker_pb2.WorkRequest
    ticket: _prefill_pb2.KvTicket
    def __init__(self, request: _Optional[_Union[_worker_pb2.WorkRequest, _Mapping]] = ..., ticket: _Optional[_Union[_prefill_pb2.KvTicket, _Mapping]] = ...) -> None: ...

class Cancel(_message.Message):
    __slots__ = ("request_id", "attempt", "reason")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    attempt: int
    reason: str
    def __init__(self, request_id: _Optional[str] = ..., attempt: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class DecodeEvents(_message.Message):
    __slots__ = ("step", "tokens", "ends", "heartbeat")
    STEP_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    ENDS_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    step: int
    tokens: _containers.RepeatedCompositeFieldContainer[TokenEvent]
    ends: _containers.RepeatedCompositeFieldContainer[EndEvent]
    heartbeat: bool
    def __init__(self, step: _Optional[int] = ..., tokens: _Optional[_Iterable[_Union[TokenEvent, _Mapping]]] = ..., ends: _Optional[_Iterable[_Union[EndEvent, _Mapping]]] = ..., heartbeat: _Optional[bool] = ...) -> None: ...

class TokenEvent(_message.Message):
    __slots__ = ("request_id", "attempt", "index", "token_ids", "prefilled", "logprobs")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    PREFILLED_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    attempt: int
    index: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    prefilled: Prefilled
    logprobs: _containers.RepeatedCompositeFieldContainer[_common_pb2.TokenLogprobs]
    def __init__(self, request_id: _Optional[str] = ..., attempt: _Optional[int] = ..., index: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., prefilled: _Optional[_Union[Prefilled, _Mapping]] = ..., logprobs: _Optional[_Iterable[_Union[_common_pb2.TokenLogprobs, _Mapping]]] = ...) -> None: ...

class Prefilled(_message.Message):
    __slots__ = ("cached_tokens", "prompt_logprobs")
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    cached_tokens: int
    prompt_logprobs: _containers.RepeatedCompositeFieldContainer[_common_pb2.TokenLogprobs]
    def __init__(self, cached_tokens: _Optional[int] = ..., prompt_logprobs: _Optional[_Iterable[_Union[_common_pb2.TokenLogprobs, _Mapping]]] = ...) -> None: ...

class EndEvent(_message.Message):
    __slots__ = ("request_id", "attempt", "finish_reason", "error", "timeline")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    TIMELINE_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    attempt: int
    finish_reason: _common_pb2.FinishReason
    error: WorkError
    timeline: _common_pb2.Timeline
    def __init__(self, request_id: _Optional[str] = ..., attempt: _Optional[int] = ..., finish_reason: _Optional[_Union[_common_pb2.FinishReason, str]] = ..., error: _Optional[_Union[WorkError, _Mapping]] = ..., timeline: _Optional[_Union[_common_pb2.Timeline, _Mapping]] = ...) -> None: ...

class WorkError(_message.Message):
    __slots__ = ("kind", "message", "ticket_alive")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        KIND_UNSPECIFIED: _ClassVar[WorkError.Kind]
        KIND_KV_LOST: _ClassVar[WorkError.Kind]
        KIND_IDENTITY_MISMATCH: _ClassVar[WorkError.Kind]
        KIND_OVERLOADED: _ClassVar[WorkError.Kind]
        KIND_INVALID: _ClassVar[WorkError.Kind]
        KIND_INTERNAL: _ClassVar[WorkError.Kind]
    KIND_UNSPECIFIED: WorkError.Kind
    KIND_KV_LOST: WorkError.Kind
    KIND_IDENTITY_MISMATCH: WorkError.Kind
    KIND_OVERLOADED: WorkError.Kind
    KIND_INVALID: WorkError.Kind
    KIND_INTERNAL: WorkError.Kind
    KIND_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    TICKET_ALIVE_FIELD_NUMBER: _ClassVar[int]
    kind: WorkError.Kind
    message: str
    ticket_alive: bool
    def __init__(self, kind: _Optional[_Union[WorkError.Kind, str]] = ..., message: _Optional[str] = ..., ticket_alive: _Optional[bool] = ...) -> None: ...
