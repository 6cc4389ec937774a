"""HTTP/1.1 connections on which a client that leaves is noticed, also when it has sent requests ahead."""

from __future__ import annotations

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

# Requests that a client may send ahead on one connection. Those who do at all send a few.
MAX_AHEAD = 16


class PipeliningProtocol(HttpToolsProtocol):
    """uvicorn's protocol, which on its own tells only the request that came last that its client has left.

    The one that is being answered would run to its end for nobody, and those behind it after that. uvicorn
    also stops reading while requests wait, so that it would not see the client leave at all.
    """

    _first: RequestResponseCycle | None = None

    def on_headers_complete(self) -> None:
        """A request: it is answered now, or waits for its turn behind the one that is."""
        answering = self._answering()
        super().on_headers_complete()
        self._first = answering or self.cycle
        if len(self.pipeline) > MAX_AHEAD:
            self.transport.abort()
        elif self.pipeline:
            self.flow.resume_reading()

    def on_response_complete(self) -> None:
        """The next one in line is answered."""
        self._first = self.pipeline[-1][0] if self.pipeline else None
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Ends the request that is being answered, and forgets the others."""
        answering = self._answering()
        self.pipeline.clear()
        super().connection_lost(exc)
        if answering is not None:
            answering.disconnected = True
            answering.message_event.set()

    def _answering(self) -> RequestResponseCycle | None:
        return None if self._first is None or self._first.response_complete else self._first
