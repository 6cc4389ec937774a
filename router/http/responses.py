"""Bodies of answers, in OpenAI's form. Typed dictionaries: they are built on the hot path."""

from __future__ import annotations

from typing import Annotated, Literal, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from router.described import told
from router.http.call_bodies import Call, CallDelta

FinishReason = Literal["stop", "length", "tool_calls"]

_COUNT = "[0, ...]"
_IDS = "token ids of the vocabulary"
_LOGPROB = "[-9999, 0]; -9999 stands for minus infinity too"
_INDEX = told("Number of the choice: prompt times n, plus the choice to that prompt.", "[0, 127]")
_WHY = told(
    "Why it ended: `stop` at the model's end token, a stop token or a stop string, `tool_calls` there with "
    "calls, `length` at max_tokens or the context length. Null in a stream before the end.",
    "`stop`, `length`, `tool_calls` (chats only) or null",
)
_CREATED = told("When the request was accepted, since 1970.", "[0, ...]", "seconds")
_MODEL = told("The served model's name.", "any text")
_FINGERPRINT = told("Changes when the same seed may give another answer.", "`fp_` and 12 hexadecimal digits")
_PROMPT_IDS = told("With return_token_ids: the prompt.", _IDS, "tokens")
_TOKEN_IDS = told("With return_token_ids: the tokens of the answer, or what is new of them.", _IDS, "tokens")
_CHOICES = told(
    "The answers; in a stream what is new of one. Empty in the chunk with the usage.", "[0, 128] of them"
)


def _kind(value: str) -> str:
    return told("The kind of object.", f"`{value}`")


class PromptTokensDetails(TypedDict):
    """What the prompt's tokens were."""

    cached_tokens: Annotated[
        int, Field(description=told("Prompt tokens that nobody computed.", "[0, prompt_tokens]", "tokens"))
    ]


class CompletionTokensDetails(TypedDict):
    """What the answer's tokens were."""

    reasoning_tokens: Annotated[
        int,
        Field(description=told("Tokens before the answer proper.", "[0, completion_tokens]", "tokens")),
    ]
    accepted_prediction_tokens: Annotated[
        int, Field(description=told("Predictions are not taken.", "0", "tokens"))
    ]
    rejected_prediction_tokens: Annotated[
        int, Field(description=told("Predictions are not taken.", "0", "tokens"))
    ]


class Usage(TypedDict):
    """Token counts. The details come when the request has ended."""

    prompt_tokens: Annotated[
        int, Field(description=told("Tokens of all prompts, each counted once.", _COUNT, "tokens"))
    ]
    completion_tokens: Annotated[
        int,
        Field(
            description=told(
                "Tokens of all answers, those that best_of left out too; 0 where a prompt was only scored.",
                _COUNT,
                "tokens",
            )
        ),
    ]
    total_tokens: Annotated[int, Field(description=told("The sum of both.", _COUNT, "tokens"))]
    prompt_tokens_details: NotRequired[
        Annotated[PromptTokensDetails, Field(description=told("Of prompt_tokens.", "an object"))]
    ]
    completion_tokens_details: NotRequired[
        Annotated[CompletionTokensDetails, Field(description=told("Of completion_tokens.", "an object"))]
    ]


class PromptLogprob(TypedDict):
    """One token in one place of the prompt."""

    logprob: Annotated[float, Field(description=told("Its log probability.", _LOGPROB, "nats"))]
    rank: Annotated[int, Field(description=told("Its rank, 1 being the likeliest.", "[1, vocabulary size]"))]
    decoded_token: Annotated[str, Field(description=told("Its text.", "any text"))]


# By token id, as JSON has keys: a string.
PromptLogprobs = list[dict[str, PromptLogprob] | None]
_PROMPT_LOGPROBS = told(
    "With prompt_logprobs: for each token of the prompt the log probabilities in its place, by token id; "
    "null for the first. In a stream they come with the first chunk.",
    "a list as long as the prompt",
)


class TopLogprob(TypedDict):
    """A token that was likely in a place."""

    token: Annotated[
        str,
        Field(description=told("Its text, with `\\xNN` for bytes that are no whole character.", "any text")),
    ]
    logprob: Annotated[float, Field(description=told("Its log probability.", _LOGPROB, "nats"))]
    bytes: Annotated[list[int], Field(description=told("Its bytes.", "[0, 255] each", "bytes"))]


class ChatLogprob(TopLogprob):
    """A token of the answer."""

    top_logprobs: Annotated[
        list[TopLogprob],
        Field(description=told("The likeliest tokens in its place, best first.", "[0, 20] of them")),
    ]


class ChatLogprobs(TypedDict):
    """Log probabilities of a chat's answer."""

    content: Annotated[
        list[ChatLogprob],
        Field(description=told("The answer's tokens, in order, the one that ended it too.", "a list")),
    ]
    refusal: Annotated[None, Field(description=told("Refusals are not told apart.", "null"))]


class CompletionLogprobs(TypedDict):
    """Log probabilities of a completion: four lists of one length."""

    tokens: Annotated[
        list[str],
        Field(
            description=told(
                "The tokens' text, with `bytes:\\xNN` for one that is no whole character. With echo the "
                "prompt's "
                "come first.",
                "a list of texts",
            )
        ),
    ]
    token_logprobs: Annotated[
        list[float | None],
        Field(description=told("Their log probabilities; null for a prompt's first.", _LOGPROB, "nats")),
    ]
    top_logprobs: Annotated[
        list[dict[str, float] | None],
        Field(
            description=told(
                "For each the likeliest tokens in its place and itself, by text; null for a prompt's first.",
                _LOGPROB,
                "nats",
            )
        ),
    ]
    text_offset: Annotated[
        list[int], Field(description=told("Where their text begins in the choice's.", _COUNT, "characters"))
    ]


_REASONING = told("What the model thought before it answered, or what is new of it.", "any text")
_REASONING_TOO = told("The same under the name that other clients read.", "any text")


class AssistantMessage(TypedDict):
    """The answer to a chat."""

    role: Annotated[Literal["assistant"], Field(description=told("Who speaks.", "`assistant`"))]
    content: Annotated[
        str | None,
        Field(description=told("What is said; null where there are only calls.", "any text or null")),
    ]
    refusal: Annotated[None, Field(description=told("Refusals are not told apart.", "null"))]
    reasoning_content: NotRequired[Annotated[str, Field(description=_REASONING)]]
    reasoning: NotRequired[Annotated[str, Field(description=_REASONING_TOO)]]
    tool_calls: NotRequired[
        Annotated[list[Call], Field(description=told("Functions that are to be called.", "a list", "calls"))]
    ]


_CHAT_LOGPROBS = Annotated[
    ChatLogprobs | None,
    Field(description=told("With logprobs: those of the tokens; else null.", "an object or null")),
]


class ChatChoice(TypedDict):
    """One choice of a chat completion."""

    index: Annotated[int, Field(description=_INDEX)]
    message: Annotated[AssistantMessage, Field(description=told("The answer.", "an object"))]
    logprobs: _CHAT_LOGPROBS
    finish_reason: Annotated[FinishReason, Field(description=_WHY)]
    token_ids: NotRequired[Annotated[list[int], Field(description=_TOKEN_IDS)]]


class ChatCompletion(TypedDict):
    """Answer of `/v1/chat/completions`."""

    id: Annotated[str, Field(description=told("The request's name.", "`chatcmpl-` and its id"))]
    object: Annotated[Literal["chat.completion"], Field(description=_kind("chat.completion"))]
    created: Annotated[int, Field(description=_CREATED)]
    model: Annotated[str, Field(description=_MODEL)]
    system_fingerprint: Annotated[str, Field(description=_FINGERPRINT)]
    choices: Annotated[list[ChatChoice], Field(description=_CHOICES)]
    usage: Annotated[Usage, Field(description=told("Token counts.", "an object"))]
    prompt_logprobs: NotRequired[Annotated[PromptLogprobs, Field(description=_PROMPT_LOGPROBS)]]
    prompt_token_ids: NotRequired[Annotated[list[int], Field(description=_PROMPT_IDS)]]


class Delta(TypedDict, total=False):
    """What is new in a choice."""

    role: Annotated[
        Literal["assistant"],
        Field(description=told("Who speaks; with the choice's first chunk.", "`assistant`")),
    ]
    content: Annotated[str, Field(description=told("New text.", "any text"))]
    reasoning_content: Annotated[str, Field(description=_REASONING)]
    reasoning: Annotated[str, Field(description=_REASONING_TOO)]
    tool_calls: Annotated[
        list[CallDelta], Field(description=told("What is new of the calls.", "a list", "calls"))
    ]


class ChunkChoice(TypedDict):
    """One choice in a chunk of a streaming chat completion."""

    index: Annotated[int, Field(description=_INDEX)]
    delta: Annotated[Delta, Field(description=told("What is new.", "an object"))]
    logprobs: _CHAT_LOGPROBS
    finish_reason: Annotated[FinishReason | None, Field(description=_WHY)]
    token_ids: NotRequired[Annotated[list[int], Field(description=_TOKEN_IDS)]]


_STREAM_USAGE = told(
    "With stream_options: the token counts; null where they are not told yet.", "an object or null"
)


class ChatCompletionChunk(TypedDict):
    """One event of a streaming chat completion."""

    id: Annotated[str, Field(description=told("The request's name.", "`chatcmpl-` and its id"))]
    object: Annotated[Literal["chat.completion.chunk"], Field(description=_kind("chat.completion.chunk"))]
    created: Annotated[int, Field(description=_CREATED)]
    model: Annotated[str, Field(description=_MODEL)]
    system_fingerprint: Annotated[str, Field(description=_FINGERPRINT)]
    choices: Annotated[list[ChunkChoice], Field(description=_CHOICES)]
    usage: NotRequired[Annotated[Usage | None, Field(description=_STREAM_USAGE)]]
    prompt_logprobs: NotRequired[Annotated[PromptLogprobs, Field(description=_PROMPT_LOGPROBS)]]
    prompt_token_ids: NotRequired[Annotated[list[int], Field(description=_PROMPT_IDS)]]


class CompletionChoice(TypedDict):
    """One choice of a completion, whole or, in a stream, the new part of it."""

    index: Annotated[int, Field(description=_INDEX)]
    text: Annotated[str, Field(description=told("The text, or what is new of it.", "any text"))]
    logprobs: Annotated[
        CompletionLogprobs | None,
        Field(description=told("With logprobs: those of the tokens; else null.", "an object or null")),
    ]
    finish_reason: Annotated[FinishReason | None, Field(description=_WHY)]
    prompt_logprobs: NotRequired[Annotated[PromptLogprobs, Field(description=_PROMPT_LOGPROBS)]]
    prompt_token_ids: NotRequired[Annotated[list[int], Field(description=_PROMPT_IDS)]]
    token_ids: NotRequired[Annotated[list[int], Field(description=_TOKEN_IDS)]]


class Completion(TypedDict):
    """Answer of `/v1/completions`, and each event of a streaming one."""

    id: Annotated[str, Field(description=told("The request's name.", "`cmpl-` and its id"))]
    object: Annotated[Literal["text_completion"], Field(description=_kind("text_completion"))]
    created: Annotated[int, Field(description=_CREATED)]
    model: Annotated[str, Field(description=_MODEL)]
    system_fingerprint: Annotated[str, Field(description=_FINGERPRINT)]
    choices: Annotated[list[CompletionChoice], Field(description=_CHOICES)]
    usage: NotRequired[Annotated[Usage | None, Field(description=_STREAM_USAGE)]]
