"""What a client did wrong, said the same way by both doors.

Failures after a request was accepted are `router.generation.GenerationError`.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import ValidationError

# What of a client's own words comes back in an error, characters.
MAX_MESSAGE = 1000
MAX_PARAM = 200


def clipped(text: str, limit: int) -> str:
    """The text, or its two ends where it is longer than `limit` characters."""
    if len(text) <= limit:
        return text
    half = (limit - 5) // 2
    return f"{text[:half]} ... {text[-half:]}"


class InvalidRequestError(ValueError):
    """A request that can never be served as it is.

    Attributes:
        message: what is wrong, for the client; at most MAX_MESSAGE characters, whatever the client sent.
        param: the parameter at fault, for example `messages[0].content`, at most MAX_PARAM characters; None
            for the request as a whole.
        code: short machine-readable name; None for none.
    """

    def __init__(self, message: str, param: str | None = None, code: str | None = None) -> None:
        message = clipped(message, MAX_MESSAGE)
        super().__init__(message)
        self.message = message
        self.param = None if param is None else clipped(param, MAX_PARAM)
        self.code = code


class ModelNotFoundError(InvalidRequestError):
    """The named model is not served here."""

    def __init__(self, asked: str, served: str) -> None:
        super().__init__(
            f"The model {asked!r} does not exist; this server has {served!r}.", "model", "model_not_found"
        )


def param_name(location: Sequence[str | int]) -> str:
    """`("messages", 0, "content")` as `messages[0].content`."""
    name = ""
    for part in location:
        name += f"[{part}]" if isinstance(part, int) else f".{part}" if name else part
    return name


def from_validation(error: ValidationError, within: Sequence[str] = ()) -> InvalidRequestError:
    """The first thing that pydantic found, with its place, which is `within` others."""
    first = error.errors(include_url=False, include_context=False)[0]
    if not first["loc"]:
        # Parameters that do not go together: the bodies' own errors have the name of one as their type.
        return InvalidRequestError(f"{first['msg']}.", first["type"], "invalid_value")
    param = param_name((*within, *first["loc"]))
    match first["type"]:
        case "extra_forbidden":
            return InvalidRequestError(f"Unknown parameter: {param!r}.", param, "unknown_parameter")
        case "missing":
            return InvalidRequestError(f"Missing required parameter: {param!r}.", param, "missing_parameter")
        case "model_type" | "model_attributes_type":
            # Pydantic's own words name a class of ours.
            return InvalidRequestError(
                f"Invalid {param!r}: Input should be an object.", param, "invalid_value"
            )
        case _:
            message = first["msg"].removeprefix("Value error, ").removesuffix(".")
            return InvalidRequestError(f"Invalid {param!r}: {message}.", param, "invalid_value")
