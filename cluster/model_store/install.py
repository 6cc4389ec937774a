"""Puts a model folder in place as a whole or not at all, also when two processes want it at once."""

from __future__ import annotations

import fcntl
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from cluster.model_store.progress import Progress


def install(target: Path, build: Callable[[Path], None], progress: Progress) -> Path:
    """Makes sure that `target` exists, building it where it does not.

    `build` fills a temporary folder beside `target`, which is then renamed. A lock file is held
    meanwhile, so that a second process waits and finds the folder ready; what a killed process left is
    removed. An error of `build` leaves nothing behind.
    """
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with _locked(
        target.parent / f".{target.name}.lock", f"waiting for another process: {target.name}", progress
    ):
        if target.exists():
            return target
        prefix = f".{target.name}.partial-"
        for leftover in target.parent.glob(f"{prefix}*"):
            shutil.rmtree(leftover)
        with tempfile.TemporaryDirectory(prefix=prefix, dir=target.parent) as work:
            # One level down: the temporary folder itself is private to its owner and is removed at the end.
            folder = Path(work) / target.name
            folder.mkdir()
            build(folder)
            folder.rename(target)
    return target


@contextmanager
def _locked(path: Path, waiting: str, progress: Progress) -> Iterator[None]:
    """Holds an exclusive lock that the kernel gives back when the process ends, however it ends."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress(waiting)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
