"""Runs the HTTP application in the process's own event loop."""

from __future__ import annotations

import asyncio
import math

import uvicorn
from starlette.types import ASGIApp

from router.addresses import bind
from router.http.protocol import PipeliningProtocol


class HttpServer:
    """Listens from its making on; answers from `start` on.

    Attributes:
        port: the port it listens on.

    Raises PortInUseError.
    """

    def __init__(self, app: ASGIApp, host: str, port: int) -> None:
        self._socket = bind(host, port)
        self.port: int = self._socket.getsockname()[1]
        self._config = uvicorn.Config(
            app,
            lifespan="off",
            http=PipeliningProtocol,
            ws="none",
            # Our own logs say all that these would.
            log_config=None,
            access_log=False,
            log_level="warning",
            server_header=False,
            # Longer than the pools of usual clients and balancers keep an idle connection.
            timeout_keep_alive=75,
        )
        self._server = uvicorn.Server(self._config)
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Returns once calls are answered.

        The steps of `uvicorn.Server.serve` without its signal handlers: the process has its own.
        """
        self._config.load()
        self._server.lifespan = self._config.lifespan_class(self._config)
        await self._server.startup([self._socket])
        self._task = asyncio.create_task(self._server.main_loop())

    async def stop(self, grace_s: float) -> None:
        """Closes the port at once, ends running calls after `grace_s`."""
        if self._task is None:
            self._socket.close()
            return
        self._config.timeout_graceful_shutdown = max(1, math.ceil(grace_s))
        self._server.should_exit = True
        await self._task
        await self._server.shutdown([self._socket])
