"""What follows when an attempt fails: the table of docs/handover.md, as a pure function."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from kvrelay.v1 import decode_pb2
from router.generation import ErrorKind, GenerationError

# How long work goes to others, seconds: after a loss, until the worker's reports show whether it lives;
# after a full queue, about a step.
_LOST_COOLDOWN_S = 0.5
_OVERLOADED_COOLDOWN_S = 0.25

RETRY_AFTER_S = 1.0


class FailureCause(StrEnum):
    """Why an attempt failed although the request may yet succeed."""

    PREFILL_LOST = "prefill_lost"
    PREFILL_OVERLOADED = "prefill_overloaded"
    DECODE_LOST = "decode_lost"
    DECODE_OVERLOADED = "decode_overloaded"
    KV_LOST = "kv_lost"


class AttemptFailedError(Exception):
    """One attempt failed; another may be made.

    Attributes:
        cause: why.
        message: in the worker's words, for logs and for the client if it was the last attempt.
        ticket_alive: whether the ticket of this attempt may be given to another decode worker.
    """

    def __init__(self, cause: FailureCause, message: str, *, ticket_alive: bool) -> None:
        super().__init__(f"{cause}: {message}")
        self.cause = cause
        self.message = message
        self.ticket_alive = ticket_alive


@dataclass(frozen=True, slots=True)
class NextStep:
    """How the next attempt differs.

    Attributes:
        reattach: another decode worker takes the same ticket; otherwise the context is prefilled anew.
        keep_decode: the decode worker stays the same.
        prefill_cooldown_s: for how long the prefill worker gets no work where there are others.
        decode_cooldown_s: the same for the decode worker.
    """

    reattach: bool
    keep_decode: bool
    prefill_cooldown_s: float = 0.0
    decode_cooldown_s: float = 0.0


def next_step(failure: AttemptFailedError) -> NextStep:
    """What to do after a failure."""
    alive = failure.ticket_alive
    match failure.cause:
        case FailureCause.PREFILL_LOST:
            return NextStep(reattach=False, keep_decode=True, prefill_cooldown_s=_LOST_COOLDOWN_S)
        case FailureCause.PREFILL_OVERLOADED:
            return NextStep(reattach=False, keep_decode=False, prefill_cooldown_s=_OVERLOADED_COOLDOWN_S)
        case FailureCause.DECODE_LOST:
            return NextStep(reattach=alive, keep_decode=False, decode_cooldown_s=_LOST_COOLDOWN_S)
        case FailureCause.DECODE_OVERLOADED:
            return NextStep(reattach=alive, keep_decode=False, decode_cooldown_s=_OVERLOADED_COOLDOWN_S)
        case FailureCause.KV_LOST if alive:
            # The ticket lives, so it is this decode worker that cannot have its KV.
            return NextStep(reattach=True, keep_decode=False, decode_cooldown_s=_LOST_COOLDOWN_S)
        case FailureCause.KV_LOST:
            return NextStep(reattach=False, keep_decode=True, prefill_cooldown_s=_LOST_COOLDOWN_S)


def give_up(failure: AttemptFailedError, attempts: int) -> GenerationError:
    """The client's error when the last attempt that it may have has failed."""
    message = f"failed after {attempts} attempts: {failure.message}"
    overloaded = (FailureCause.PREFILL_OVERLOADED, FailureCause.DECODE_OVERLOADED)
    kind = ErrorKind.OVERLOADED if failure.cause in overloaded else ErrorKind.UNAVAILABLE
    return GenerationError(kind, message, RETRY_AFTER_S)


def classify_work_error(error: decode_pb2.WorkError, worker_id: str) -> AttemptFailedError | GenerationError:
    """What a decode worker's error means for the request."""
    message = f"{worker_id}: {error.message}"
    match error.kind:
        case decode_pb2.WorkError.KIND_KV_LOST:
            return AttemptFailedError(FailureCause.KV_LOST, message, ticket_alive=error.ticket_alive)
        case decode_pb2.WorkError.KIND_OVERLOADED:
            return AttemptFailedError(
                FailureCause.DECODE_OVERLOADED, message, ticket_alive=error.ticket_alive
            )
        case decode_pb2.WorkError.KIND_INVALID:
            return GenerationError(ErrorKind.INVALID, error.message)
        case _:
            # Identities that differ stay so, and what broke one engine would break the next.
            return GenerationError(ErrorKind.INTERNAL, message)
