"""Bodies of answers that generate nothing."""

from __future__ import annotations

from typing import Annotated, Literal, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from router.described import told


class Model(TypedDict):
    """A served model. max_model_len is not in OpenAI's form."""

    id: Annotated[str, Field(description=told("Its name.", "any text"))]
    object: Annotated[Literal["model"], Field(description=told("The kind of object.", "`model`"))]
    created: Annotated[
        int, Field(description=told("When it began to be served here, since 1970.", "[0, ...]", "seconds"))
    ]
    owned_by: Annotated[str, Field(description=told("Who serves it.", "`kvrelay`"))]
    max_model_len: Annotated[
        int, Field(description=told("Context length: prompt and answer together.", "[2, ...]", "tokens"))
    ]


class ModelList(TypedDict):
    """Answer of `/v1/models`."""

    object: Annotated[Literal["list"], Field(description=told("The kind of object.", "`list`"))]
    data: Annotated[list[Model], Field(description=told("The served models.", "1 of them"))]


class Tokenization(TypedDict):
    """Answer of `/tokenize`."""

    count: Annotated[int, Field(description=told("How many tokens.", "[1, ...]", "tokens"))]
    max_model_len: Annotated[
        int, Field(description=told("Context length: prompt and answer together.", "[2, ...]", "tokens"))
    ]
    tokens: Annotated[
        list[int], Field(description=told("The tokens.", "token ids of the vocabulary", "tokens"))
    ]
    token_strs: NotRequired[
        Annotated[
            list[str],
            Field(
                description=told(
                    "With return_token_strs: each as the vocabulary spells it.", "a list of texts"
                )
            ),
        ]
    ]


class Detokenization(TypedDict):
    """Answer of `/detokenize`."""

    prompt: Annotated[str, Field(description=told("The tokens' text.", "any text"))]


class Status(TypedDict):
    """Answer of `/health` and `/ready`."""

    status: Annotated[str, Field(description=told("`ok`, `ready`, or why it is not.", "any text"))]


class Version(TypedDict):
    """Answer of `/version`."""

    version: Annotated[str, Field(description=told("Of the installed package.", "any text"))]
