"""Processes of this machine: who they are, whether they live, and how to end them. Linux only (/proc)."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
# Fields of /proc/PID/stat after the command's closing parenthesis (proc_pid_stat(5)).
_STATE, _PARENT, _START_TICKS = 0, 1, 19
_DEAD_STATES = frozenset({"Z", "X"})

INSTANCE_VARIABLE = "KVRELAY_INSTANCE"
"""Marks every process that a supervisor starts, and what those start, with the supervisor's own value."""


@dataclass(frozen=True, slots=True)
class ProcessId:
    """A process, told apart from a later one with the same pid by its start.

    Attributes:
        pid: in this process's pid namespace.
        start_ticks: clock ticks from the machine's boot to the process's start.
    """

    pid: int
    start_ticks: int


def identify(pid: int) -> ProcessId | None:
    """The process that has this pid now; None where there is none, or only a zombie."""
    fields = _stat(pid)
    if fields is None or fields[_STATE] in _DEAD_STATES:
        return None
    return ProcessId(pid, int(fields[_START_TICKS]))


def is_alive(process: ProcessId) -> bool:
    """Whether that very process still runs (a stopped one does)."""
    return identify(process.pid) == process


def send_signal(process: ProcessId, number: signal.Signals) -> bool:
    """Signals that very process, never a later one with its pid. False where it is gone.

    Raises PermissionError for somebody else's process.
    """
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return False
    try:
        # The descriptor pins the process: if the start is right now, the signal hits the right one.
        if not is_alive(process):
            return False
        signal.pidfd_send_signal(descriptor, number)
        return True
    except ProcessLookupError:
        return False
    finally:
        os.close(descriptor)


def wait_for_end(process: ProcessId, timeout_s: float) -> bool:
    """Waits until the process has ended; False when the time is over. It need not be a child."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return True
    try:
        if not is_alive(process):
            return True
        # Readable when the process ends (pidfd_open(2)).
        poller = select.poll()
        poller.register(descriptor, select.POLLIN)
        return bool(poller.poll(max(0.0, timeout_s) * 1e3))
    finally:
        os.close(descriptor)


def marked_processes(instance: str) -> list[ProcessId]:
    """Every live process that was started with `KVRELAY_INSTANCE=instance`, and all descendants of those.

    Descendants count because a process that sets its title, as Ray's do, may overwrite the memory that /proc
    shows as its environment; one whose parents are gone too can then no longer be told. This process itself
    is never among them.
    """
    parents = _parents()
    marker = f"{INSTANCE_VARIABLE}={instance}".encode()
    found = {pid for pid in parents if marker in _environment(pid)}
    found |= {pid for pid in parents if _has_ancestor(pid, found, parents)}
    found.discard(os.getpid())
    return [process for pid in sorted(found) if (process := identify(pid)) is not None]


def end_marked(instance: str, timeout_s: float, known: Iterable[ProcessId] = ()) -> list[ProcessId]:
    """SIGKILLs every process of `marked_processes` and of `known`, until none is left.

    Args:
        instance: the mark.
        timeout_s: how long to try.
        known: processes that were marked earlier, should their mark have been lost since.

    Returns:
        The survivors.
    """
    deadline = time.monotonic() + timeout_s
    suspects = set(known)
    while True:
        suspects |= set(marked_processes(instance))
        left = sorted(filter(is_alive, suspects), key=lambda process: process.pid)
        if not left or time.monotonic() > deadline:
            return left
        for process in left:
            send_signal(process, signal.SIGKILL)
        for process in left:
            wait_for_end(process, deadline - time.monotonic())


def children_named(parent: int, command: str) -> list[ProcessId]:
    """Live children of a process whose command the kernel calls so (at most 15 characters of it)."""
    found = []
    for pid, its_parent in sorted(_parents().items()):
        if its_parent == parent and _command(pid) == command and (process := identify(pid)) is not None:
            found.append(process)
    return found


def _command(pid: int) -> str:
    try:
        return (_PROC / str(pid) / "comm").read_text().removesuffix("\n")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def _stat(pid: int) -> list[str] | None:
    try:
        text = (_PROC / str(pid) / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The command may hold spaces and parentheses: fields are counted from the last one.
    return text[text.rindex(")") + 2 :].split()


def _parents() -> dict[int, int]:
    parents: dict[int, int] = {}
    for entry in _PROC.iterdir():
        if entry.name.isdecimal() and (fields := _stat(int(entry.name))) is not None:
            parents[int(entry.name)] = int(fields[_PARENT])
    return parents


def _environment(pid: int) -> list[bytes]:
    try:
        return (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        # Ended meanwhile, or somebody else's.
        return []


def _has_ancestor(pid: int, ancestors: set[int], parents: Mapping[int, int]) -> bool:
    while (pid := parents.get(pid, 0)) > 1:
        if pid in ancestors:
            return True
    return False
