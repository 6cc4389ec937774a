"""The Lua scripts: the atomic operations of the index. `common.lua` is prepended to each."""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import sha1
from importlib.resources import files


@dataclass(frozen=True, slots=True)
class Script:
    """One script as Redis knows it."""

    source: str
    sha: str = field(init=False)

    def __post_init__(self) -> None:
        # Redis names scripts by SHA-1; no secret hangs on it.
        digest = sha1(self.source.encode(), usedforsecurity=False).hexdigest()
        object.__setattr__(self, "sha", digest)


def _load(name: str) -> Script:
    folder = files(__name__)
    return Script((folder / "common.lua").read_text() + (folder / f"{name}.lua").read_text())


BOOK = _load("book")
LEAVE = _load("leave")
MATCH = _load("match")
PUBLISH = _load("publish")
REGISTER = _load("register")
SWEEP = _load("sweep")
