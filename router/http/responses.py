"""Bodies of answers, in OpenAI's form. Typed dictionaries: they are built on the hot path."""

from __future__ import annotations

from typing import Literal, NotRequired

from typing_extensions import TypedDict

FinishReason = Literal["stop", "length"]


class PromptTokensDetails(TypedDict):
    """cached_tokens: prompt tokens that nobody computed for this request."""

    cached_tokens: int


class Usage(TypedDict):
    """Token counts. prompt_tokens_details comes when the request has ended."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: NotRequired[PromptTokensDetails]


class AssistantMessage(TypedDict):
    """The answer to a chat."""

    role: Literal["assistant"]
    content: str
    refusal: None


class ChatChoice(TypedDict):
    """One choice of a chat completion."""

    index: int
    message: AssistantMessage
    logprobs: None
    finish_reason: FinishReason


class ChatCompletion(TypedDict):
    """Answer of `/v1/chat/completions`."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: Usage


class Delta(TypedDict, total=False):
    """What is new in a choice; `role` comes with its first chunk."""

    role: Literal["assistant"]
    content: str


class ChunkChoice(TypedDict):
    """One choice in a chunk of a streaming chat completion."""

    index: int
    delta: Delta
    logprobs: None
    finish_reason: FinishReason | None


class ChatCompletionChunk(TypedDict):
    """One event of a streaming chat completion."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChunkChoice]
    usage: NotRequired[Usage | None]


class CompletionChoice(TypedDict):
    """One choice of a completion, whole or, in a stream, the new part of it."""

    index: int
    text: str
    logprobs: None
    finish_reason: FinishReason | None


class Completion(TypedDict):
    """Answer of `/v1/completions`, and each event of a streaming one."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[CompletionChoice]
    usage: NotRequired[Usage | None]


class Model(TypedDict):
    """A served model. max_model_len (tokens, prompt and answer together) is not in OpenAI's form."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int


class ModelList(TypedDict):
    """Answer of `/v1/models`."""

    object: Literal["list"]
    data: list[Model]


class Status(TypedDict):
    """Answer of `/health` and `/ready`."""

    status: str


class Version(TypedDict):
    """Answer of `/version`."""

    version: str
