"""What a client did wrong, said the same way by both doors.

Failures after a request was accepted are `router.generation.GenerationError`.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import ValidationError


class InvalidRequestError(ValueError):
    """A request that can never be served as it is.

    Attributes:
        message: what is wrong, for the client.
        param: the parameter at fault, for example `messages[0].content`; None for the request as a whole.
        code: short machine-readable name; None for none.
    """

    def __init__(self, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
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


def from_validation(error: ValidationError) -> InvalidRequestError:
    """The first thing that pydantic found, with its place."""
    first = error.errors(include_url=False, include_context=False)[0]
    param = param_name(first["loc"])
    match first["type"]:
        case "extra_forbidden":
            return InvalidRequestError(f"Unknown parameter: {param!r}.", param, "unknown_parameter")
        case "missing":
            return InvalidRequestError(f"Missing required parameter: {param!r}.", param, "missing_parameter")
        case _:
            message = first["msg"].removeprefix("Value error, ").removesuffix(".")
            return InvalidRequestError(f"Invalid {param!r}: {message}.", param, "invalid_value")
