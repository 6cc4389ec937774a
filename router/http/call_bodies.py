"""Calls in bodies of answers, in OpenAI's form."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from router.described import told
from router.tools.parsers.base import CallArguments, CallBegin

_NAME = told("Name of the function.", "a name")
_ID = told("Name of the call, which the message with its result repeats.", "`call_` and 24 digits")
_ARGUMENTS = told(
    "Its arguments, or what is new of them. Valid under the function's schema where calls are required, "
    "named or strict; else what the model wrote. Cut off where the answer was.",
    "JSON text of an object",
)


class Called(TypedDict):
    """A function with its arguments."""

    name: Annotated[str, Field(description=_NAME)]
    arguments: Annotated[str, Field(description=_ARGUMENTS)]


class Call(TypedDict):
    """One call of an answer."""

    id: Annotated[str, Field(description=_ID)]
    type: Annotated[Literal["function"], Field(description=told("The kind of call.", "`function`"))]
    function: Annotated[Called, Field(description=told("What is called.", "an object"))]


class CalledDelta(TypedDict):
    """What is new of a function and its arguments."""

    name: NotRequired[Annotated[str, Field(description=_NAME)]]
    arguments: Annotated[str, Field(description=_ARGUMENTS)]


class CallDelta(TypedDict):
    """What is new of a call; id, type and name come with the first one."""

    index: Annotated[int, Field(description=told("Number of the call in the answer.", "[0, ...]"))]
    id: NotRequired[Annotated[str, Field(description=_ID)]]
    type: NotRequired[
        Annotated[Literal["function"], Field(description=told("The kind of call.", "`function`"))]
    ]
    function: Annotated[CalledDelta, Field(description=told("What is called.", "an object"))]


def call_deltas(calls: Iterable[CallBegin | CallArguments]) -> list[CallDelta]:
    """One entry for each call: clients that put a stream together take the first chunk's list as it is."""
    deltas: dict[int, CallDelta] = {}
    for piece in calls:
        if isinstance(piece, CallBegin):
            deltas[piece.index] = {
                "index": piece.index,
                "id": piece.call_id,
                "type": "function",
                "function": {"name": piece.name, "arguments": ""},
            }
        else:
            delta = deltas.setdefault(piece.index, {"index": piece.index, "function": {"arguments": ""}})
            delta["function"]["arguments"] += piece.text
    return list(deltas.values())


def whole_calls(calls: Iterable[CallBegin | CallArguments]) -> list[Call]:
    """The calls of an answer that has ended."""
    whole: list[Call] = []
    for piece in calls:
        if isinstance(piece, CallBegin):
            whole.append(
                {
                    "id": piece.call_id,
                    "type": "function",
                    "function": {"name": piece.name, "arguments": ""},
                }
            )
        else:
            whole[piece.index]["function"]["arguments"] += piece.text
    return whole
