"""Which functions a client offers the model, and whether they must be called."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from router.described import SWITCH, asked
from router.errors import InvalidRequestError

MAX_TOOLS = 128
_REQUIRED = "none, it must be given"
_NAME = r"^[A-Za-z0-9_.-]{1,64}$"
# What a function without parameters takes, as OpenAI has it.
_NO_PARAMETERS: dict[str, object] = {"type": "object", "properties": {}, "additionalProperties": False}

Demand = Literal["none", "auto", "required"]


@dataclass(frozen=True, slots=True)
class Function:
    """One function.

    Attributes:
        name: unique among the request's.
        parameters: JSON Schema of its arguments, as JSON text.
        strict: its calls match the schema also where the model is free to call it or not.
        param: where the schema stands in the request.
    """

    name: str
    parameters: str
    strict: bool
    param: str


@dataclass(frozen=True, slots=True)
class AskedCalls:
    """What a client wants of calls.

    Attributes:
        functions: those that may be called.
        demand: "required" for at least one call, "none" for none.
        parallel: more than one call may come.
        offered: the tools as JSON text, for the chat template; empty where the model is not to see them.
        offer: how the request names what was asked, for messages.
    """

    functions: tuple[Function, ...]
    demand: Demand
    parallel: bool
    offered: str
    offer: str = "tool_choice"

    @property
    def names(self) -> frozenset[str]:
        """Of the functions that may be called."""
        return frozenset(function.name for function in self.functions)

    def for_template(self) -> tuple[Mapping[str, object], ...] | None:
        """The tools as the chat template reads them; None where the model is not to see them."""
        return tuple(json.loads(self.offered)) if self.offered else None


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class FunctionDefinition(_Part):
    """A function that the model may call."""

    name: str = Field(
        pattern=_NAME,
        description=asked(
            "Its name, unique among the tools.", "1 to 64 letters, digits, `_`, `.` and `-`", _REQUIRED
        ),
    )
    description: str | None = Field(
        default=None, description=asked("What it does, for the model.", "any text", "none")
    )
    parameters: dict[str, Any] | None = Field(
        default=None,
        description=asked(
            "JSON Schema of its arguments. Enforced, and so confined to the supported keywords, where calls "
            "are required, named or strict.",
            "a schema of an object",
            "no parameters",
        ),
    )
    strict: bool | None = Field(
        default=None,
        description=asked(
            "With tool_choice auto too every call matches the schema, which keeps to OpenAI's strict mode.",
            SWITCH,
            "false",
        ),
    )


class Tool(_Part):
    """One tool."""

    type: Literal["function"] = Field(description=asked("The kind of tool.", "`function`", _REQUIRED))
    function: FunctionDefinition = Field(description=asked("The function.", "an object", _REQUIRED))


class NamedFunction(_Part):
    """A function's name."""

    name: str = Field(description=asked("The name.", "that of one of the tools", _REQUIRED))


class NamedChoice(_Part):
    """The function that must be called."""

    type: Literal["function"] = Field(description=asked("The kind of tool.", "`function`", _REQUIRED))
    function: NamedFunction = Field(description=asked("The function.", "an object", _REQUIRED))


class ToolFields(BaseModel):
    """Parameters of a chat's body."""

    tools: list[Tool] | None = Field(
        default=None,
        max_length=MAX_TOOLS,
        description=asked("Functions that the model may call.", f"up to {MAX_TOOLS} tools", "none", "tools"),
    )
    tool_choice: Literal["none", "auto", "required"] | NamedChoice | None = Field(
        default=None,
        description=asked(
            "Whether a function must be called, or which.",
            "`none`, `auto`, `required`, or an object that names one of the tools",
            "`auto` with tools, else `none`",
        ),
    )
    parallel_tool_calls: bool | None = Field(
        default=None,
        description=asked("Several calls may come; false ends the answer with the first.", SWITCH, "true"),
    )

    def asked_calls(self) -> AskedCalls | None:
        """What is asked of calls; None without tools. Raises InvalidRequestError."""
        tools = self.tools or []
        choice = self.tool_choice
        if not tools:
            if choice not in (None, "none", "auto"):
                raise InvalidRequestError("tool_choice needs tools.", "tool_choice", "invalid_value")
            return None
        names = [tool.function.name for tool in tools]
        for index, name in enumerate(names):
            if name in names[:index]:
                raise InvalidRequestError(
                    f"tools[{index}].function.name: {name!r} is the name of two functions.",
                    f"tools[{index}].function.name",
                    "invalid_value",
                )
        if isinstance(choice, NamedChoice):
            if choice.function.name not in names:
                raise InvalidRequestError(
                    f"tool_choice names {choice.function.name!r}; the tools are: {', '.join(names)}.",
                    "tool_choice.function.name",
                    "invalid_value",
                )
            demand: Demand = "required"
            names = [choice.function.name]
        else:
            demand = choice or "auto"
        return AskedCalls(
            functions=tuple(
                _function(tool.function, index)
                for index, tool in enumerate(tools)
                if tool.function.name in names
            ),
            demand=demand,
            # One function by name is one call of it.
            parallel=self.parallel_tool_calls is not False and not isinstance(choice, NamedChoice),
            offered="" if demand == "none" else json.dumps(_offered(tools)),
        )


def _function(definition: FunctionDefinition, index: int) -> Function:
    parameters = _NO_PARAMETERS if definition.parameters is None else definition.parameters
    param = f"tools[{index}].function.parameters"
    kinds = parameters.get("type", "object")
    if kinds != "object":
        raise InvalidRequestError(
            f"{param}.type must be 'object': a call's arguments are one.",
            f"{param}.type",
            "invalid_json_schema",
        )
    return Function(
        definition.name, json.dumps({"type": "object", **parameters}), bool(definition.strict), param
    )


def _offered(tools: list[Tool]) -> list[dict[str, Any]]:
    return [tool.model_dump(exclude_none=True, exclude={"function": {"strict"}}) for tool in tools]
