"""Calls that an assistant made earlier in a chat, as clients send them back."""

from __future__ import annotations

import json
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from router.described import asked

_REQUIRED = "none, it must be given"


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class CalledFunction(_Part):
    """What was called."""

    name: str = Field(min_length=1, description=asked("The function.", "a name", _REQUIRED))
    arguments: str = Field(
        description=asked(
            "Its arguments. The chat template gets an object where they are one, else the text.",
            "JSON text",
            _REQUIRED,
        )
    )


class ToolCall(_Part):
    """One call."""

    id: str = Field(
        min_length=1, description=asked("Name of the call, which its result repeats.", "any text", _REQUIRED)
    )
    type: Literal["function"] = Field(description=asked("The kind of call.", "`function`", _REQUIRED))
    function: CalledFunction = Field(description=asked("What was called.", "an object", _REQUIRED))
    index: int | None = Field(
        default=None, ge=0, description=asked("Its place in a stream; has no effect.", "[0, ...]", "none")
    )

    def for_template(self) -> dict[str, object]:
        """As templates read it: arguments as a mapping, which they write as JSON themselves."""
        return {
            "id": self.id,
            "type": self.type,
            "function": {"name": self.function.name, "arguments": _mapping(self.function.arguments)},
        }


def _mapping(arguments: str) -> object:
    try:
        parsed = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    return parsed if isinstance(parsed, dict) else arguments
