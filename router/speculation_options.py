"""What a client may ask of speculation, once for both doors."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict, Field

from router.described import asked
from router.errors import InvalidRequestError
from router.generation import Speculation

# A tree of drafts has 64 nodes at most, its root included.
MAX_SPECULATIVE_TOKENS = 63


class SpeculationOptions(BaseModel):
    """How tokens are guessed ahead for one request. Null means not given."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    method: str | None = Field(
        default=None,
        min_length=1,
        description=asked(
            "Who guesses. The server's own method may always be named; of the others those that need no "
            "model of their own, unless the server was told not to let requests choose.",
            "none, ngram, suffix, or the server's own method",
            "the server's own method",
        ),
    )
    num_speculative_tokens: int | None = Field(
        default=None,
        ge=1,
        le=MAX_SPECULATIVE_TOKENS,
        description=asked(
            "Most guesses one behind the other; the server's own bound holds as well.",
            f"[1, {MAX_SPECULATIVE_TOKENS}]",
            "the server's own bound",
            "tokens",
        ),
    )

    def resolved(self) -> Speculation:
        """What workers are told."""
        return Speculation(self.method or "", self.num_speculative_tokens)


SPECULATION = asked(
    "How tokens are guessed ahead. That changes how fast an answer comes, never what it may say.",
    "any of its fields",
    "as the server was deployed",
)


def check_method(options: SpeculationOptions | None, served: Sequence[str]) -> None:
    """Raises InvalidRequestError for a method that is not among `served`, where any are known."""
    method = options and options.method
    if method and served and method not in served:
        raise InvalidRequestError(
            f"speculation.method is {method!r}, but must be one of {', '.join(served)} here.",
            "speculation.method",
            "invalid_value",
        )
