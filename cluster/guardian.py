"""Ends what a supervisor leaves behind when it is killed itself: `python -m cluster.guardian INSTANCE`.

The kernel ends the children that are tethered to the supervisor, but Ray's agents would live on for a
minute. The guardian reads a pipe whose other end only the supervisor holds; when that closes without a
word, it kills every process that carries the supervisor's mark.
"""

from __future__ import annotations

import select
import subprocess
import sys
from pathlib import Path

from cluster.environment import inherited_environment
from cluster.processes import INSTANCE_VARIABLE, ProcessId, end_marked, is_alive, marked_processes

_DISMISSAL = b"done"
_SWEEP_TIMEOUT_S = 30.0
_LOOK_S = 1.0


class Guardian:
    """The supervisor's side: holds the pipe. Starts at once."""

    def __init__(self, instance: str) -> None:
        root = Path(__file__).resolve().parent.parent
        environment = inherited_environment()
        # It would obey its own mark.
        environment.pop(INSTANCE_VARIABLE, None)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "cluster.guardian", instance],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            cwd=root,
            env=environment,
            # Ctrl-C at our terminal is not for it.
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        """Of the guardian's process."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether it still keeps watch."""
        return self._process.poll() is None

    def dismiss(self) -> None:
        """Ends it: everything was stopped in good order."""
        if self._process.stdin is None:
            raise AssertionError("the guardian was started without a pipe")
        try:
            self._process.stdin.write(_DISMISSAL)
            self._process.stdin.close()
        except BrokenPipeError:
            # It is gone already, and with it the need to tell it.
            pass
        self._process.wait()


def main() -> int:
    """Waits for the end of the supervisor. Exit code 1 where a process could not be ended."""
    instance = sys.argv[1]
    # Remembered from while they were alive: an orphan may no longer show its mark.
    known: set[ProcessId] = set()
    while not select.select([sys.stdin], [], [], _LOOK_S)[0]:
        known = {process for process in known if is_alive(process)} | set(marked_processes(instance))
    if sys.stdin.buffer.read() == _DISMISSAL:
        return 0
    return 1 if end_marked(instance, _SWEEP_TIMEOUT_S, known) else 0


if __name__ == "__main__":
    sys.exit(main())
