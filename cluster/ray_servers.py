"""The servers of a Ray that was started here: none of them comes back once it is gone."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from typing import Never

from cluster.processes import ProcessId, children_named, is_alive

_LOOK_S = 0.5

# As the kernel has their commands (proc_pid_comm(5)), and what they are.
_SERVERS: Mapping[str, str] = {"gcs_server": "control store (gcs_server)", "raylet": "node manager (raylet)"}


class RayLostError(Exception):
    """A server of the local Ray has ended; the message says which. Nothing can be placed or restarted."""


class RayServers:
    """The servers as they are when this is made, after Ray has started as this process's children."""

    def __init__(self) -> None:
        self._servers: dict[str, list[ProcessId]] = {
            title: children_named(os.getpid(), command) for command, title in _SERVERS.items()
        }

    @property
    def lost(self) -> str:
        """Which server has ended; empty while all live."""
        return next((title for title, found in self._servers.items() if not any(map(is_alive, found))), "")

    async def watch(self) -> Never:
        """Returns never. Raises RayLostError."""
        while not self.lost:  # noqa: ASYNC110 - other processes
            await asyncio.sleep(_LOOK_S)
        raise RayLostError(f"the local Ray is lost: its {self.lost} has ended")
