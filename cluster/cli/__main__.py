"""Entry point of the `kvrelay` command, also as `python -m cluster.cli`."""

from __future__ import annotations

import os
import signal
from types import FrameType
from typing import NoReturn

_INTERRUPTED = 130
"""Exit status after Ctrl-C, as shells have it: 128 and SIGINT's number."""


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    # Not by an exception: half an import would print a trace, and nothing has been started yet.
    os._exit(_INTERRUPTED)


def main() -> None:
    """Runs the command. Ctrl-C while it is still being loaded ends it without a word."""
    signal.signal(signal.SIGINT, _leave)
    from cluster.cli.main import app

    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        app()
    except KeyboardInterrupt:
        raise SystemExit(_INTERRUPTED) from None


if __name__ == "__main__":
    main()
