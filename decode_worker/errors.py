"""Why a request ends without its tokens, in the wire's terms."""

from __future__ import annotations

from kvrelay.v1 import decode_pb2

Kind = decode_pb2.WorkError.Kind


class WorkFailedError(Exception):
    """One attempt of a request failed.

    Args:
        kind: for the router, which acts upon it.
        message: for a person.
        ticket_alive: the ticket may be given to another decode worker.
    """

    def __init__(self, kind: Kind, message: str, ticket_alive: bool = False) -> None:
        super().__init__(message)
        self.kind = kind
        self.ticket_alive = ticket_alive

    def to_wire(self) -> decode_pb2.WorkError:
        """The message that goes to the router."""
        return decode_pb2.WorkError(kind=self.kind, message=str(self), ticket_alive=self.ticket_alive)


def kv_lost(message: str, ticket_alive: bool = False) -> WorkFailedError:
    """The KV could not be had, or cannot be trusted."""
    return WorkFailedError(decode_pb2.WorkError.KIND_KV_LOST, message, ticket_alive)
