"""Starts child processes that never outlive this one."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import IO

# Runs in an interpreter of its own, between fork and exec: code in a fork of a threaded process may
# deadlock. PR_SET_PDEATHSIG (1) outlasts execve, prctl(2).
_LAUNCH = f"""
import ctypes, os, sys
if ctypes.CDLL(None, use_errno=True).prctl(1, {int(signal.SIGKILL)}, 0, 0, 0) != 0:
    sys.exit("prctl: " + os.strerror(ctypes.get_errno()))
if os.getppid() != int(sys.argv[1]):
    sys.exit("the parent is gone already")
os.execv(sys.argv[2], sys.argv[2:])
"""


async def start_tethered(
    command: Sequence[str], *, log: IO[bytes], environment: Mapping[str, str]
) -> asyncio.subprocess.Process:
    """Starts `command` (its first part an absolute path); the kernel kills it when this process ends.

    Must be called in the main thread: the kernel takes the thread that forks for the parent. The child has
    a session of its own, so that Ctrl-C at a terminal reaches only us.
    """
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-S", "-c", _LAUNCH, str(os.getpid()), *command),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        env=dict(environment),
        start_new_session=True,
    )
