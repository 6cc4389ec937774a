"""Client SDK for kvrelay. Needs grpcio and protobuf alone.

Only re-exports belong here; what is not in `__all__` is not part of the public surface.
"""

from kvrelay.async_client import AsyncClient, AsyncStream
from kvrelay.client import Client, Stream
from kvrelay.errors import (
    AuthenticationError,
    DeadlineExceededError,
    InvalidRequestError,
    KvrelayError,
    ModelNotFoundError,
    OverloadedError,
    RequestCancelledError,
    ServerError,
    UnavailableError,
)
from kvrelay.options import GenerateOptions, PromptOptions
from kvrelay.types import (
    Choice,
    Chunk,
    FinishReason,
    Generation,
    LikelyToken,
    Message,
    Model,
    Span,
    Timeline,
    Tokenization,
    TokenLogprob,
    Tool,
    ToolCall,
    ToolCallDelta,
    Usage,
)

__all__ = [
    "AsyncClient",
    "AsyncStream",
    "AuthenticationError",
    "Choice",
    "Chunk",
    "Client",
    "DeadlineExceededError",
    "FinishReason",
    "GenerateOptions",
    "Generation",
    "InvalidRequestError",
    "KvrelayError",
    "LikelyToken",
    "Message",
    "Model",
    "ModelNotFoundError",
    "OverloadedError",
    "PromptOptions",
    "RequestCancelledError",
    "ServerError",
    "Span",
    "Stream",
    "Timeline",
    "TokenLogprob",
    "Tokenization",
    "Tool",
    "ToolCall",
    "ToolCallDelta",
    "UnavailableError",
    "Usage",
]
