"""Starting a local Ray again where the first time took too long."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Protocol

from cluster.processes import marked_processes, send_signal, wait_for_end
from cluster.ray_runtime import RayInfo, RaySlowError

_END_S = 5.0


class Connecting(Protocol):
    """What is needed of `RayRuntime`."""

    def connect(self) -> RayInfo:
        """Raises RayError; RaySlowError where another try may do."""
        ...


def connect_patiently(runtime: Connecting, instance: str, note: Callable[[str], None]) -> RayInfo:
    """As `RayRuntime.connect`, with one more try on a machine that was too busy for Ray's own bound.

    Args:
        runtime: the connection.
        instance: mark of this supervisor's processes: those of the first try are ended before the second.
        note: told in words.

    Raises RayError.
    """
    before = set(marked_processes(instance))
    try:
        return runtime.connect()
    except RaySlowError as error:
        note(f"{error}; trying once more")
    started = [process for process in marked_processes(instance) if process not in before]
    for process in started:
        send_signal(process, signal.SIGKILL)
    for process in started:
        wait_for_end(process, _END_S)
    return runtime.connect()
