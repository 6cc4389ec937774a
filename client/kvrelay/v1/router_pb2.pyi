from kvrelay.v1 import worker_pb2 as _worker_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class WorkerTable(_message.Message):
    __slots__ = ("version", "workers")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    version: int
    workers: _containers.RepeatedCompositeFieldContainer[_worker_pb2.WorkerInfo]
    def __init__(self, version: _Optional[int] = ..., workers: _Optional[_Iterable[_Union[_worker_pb2.WorkerInfo, _Mapping]]] = ...) -> None: ...

class SetWorkersResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RouterStatus(_message.Message):
    __slots__ = ("router_id", "workers", "queued", "running", "index_available", "requests_total", "prompt_tokens_total", "cached_tokens_total", "completion_tokens_total", "tokens_per_second", "uptime_s")
    ROUTER_ID_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    QUEUED_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    INDEX_AVAILABLE_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_TOKENS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    TOKENS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    UPTIME_S_FIELD_NUMBER: _ClassVar[int]
    router_id: str
    workers: _containers.RepeatedCompositeFieldContainer[WorkerStatus]
    queued: int
    running: int
    index_available: bool
    requests_total: int
    prompt_tokens_total: int
    cached_tokens_total: int
    completion_tokens_total: int
    tokens_per_second: float
    uptime_s: float
    def __init__(self, router_id: _Optional[str] = ..., workers: _Optional[_Iterable[_Union[WorkerStatus, _Mapping]]] = ..., queued: _Optional[int] = ..., running: _Optional[int] = ..., index_available: _Optional[bool] = ..., requests_total: _Optional[int] = ..., prompt_tokens_total: _Optional[int] = ..., cached_tokens_total: _Optional[int] = ..., completion_tokens_total: _Optional[int] = ..., tokens_per_second: _Optional[float] = ..., uptime_s: _Optional[float] = ...) -> None: ...

class WorkerStatus(_message.Message):
    __slots__ = ("info", "report", "healthy", "silent_s")
    INFO_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    HEALTHY_FIELD_NUMBER: _ClassVar[int]
    SILENT_S_FIELD_NUMBER: _ClassVar[int]
    info: _worker_pb2.WorkerInfo
    report: _worker_pb2.WorkerReport
    healthy: bool
    silent_s: float
    def __init__(self, info: _Optional[_Union[_worker_pb2.WorkerInfo, _Mapping]] = ..., report: _Optional[_Union[_worker_pb2.WorkerReport, _Mapping]] = ..., healthy: _Optional[bool] = ..., silent_s: _Optional[float] = ...) -> None: ...
