"""Layout of the index in Redis: four hashes a namespace, all in one cluster slot.

`{kvrelay:NS}:workers`: worker id -> `slot:deadline:incarnation:epoch`. One registration.

`{kvrelay:NS}:blocks`: block name (16 bytes) -> bitmap. Bit `slot % 8` of byte `slot // 8` is set where the
worker of that slot holds the block; trailing zero bytes are cut, a block that nobody holds has no field.

`{kvrelay:NS}:dirty`: slot -> `waiting` or `sweeping`. A slot of an ended registration whose bits may remain.
`cursor` -> HSCAN cursor of the sweep in progress.

`{kvrelay:NS}:bookings`: worker id, NUL, request id -> `tokens:deadline:worker id`.

Deadlines are milliseconds of Redis's own clock. An epoch is drawn at random for each registration, so that
none repeats when Redis has lost its data. A registration whose deadline has passed counts as ended for every
reader, whether or not somebody has removed it; a slot is given out again only when it is not in `dirty`. So
a set bit never speaks for any registration but the one that set it.

Only `bookings` expires by itself (at its longest entry). Redis must not evict keys (`maxmemory-policy
noeviction`): losing `blocks` alone would hide blocks until their workers register again.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from prefix_index.errors import IndexConfigError

_NAMESPACE = re.compile(r"[A-Za-z0-9._:/-]{1,128}")


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of one namespace, in the order in which the scripts take them."""

    workers: str
    blocks: str
    dirty: str
    bookings: str

    @classmethod
    def of(cls, namespace: str) -> Keys:
        """Keys of `namespace`. Raises IndexConfigError for a name that could clash with another's keys."""
        if not _NAMESPACE.fullmatch(namespace):
            raise IndexConfigError(
                f"index namespace {namespace!r} must be 1 to 128 letters, digits or any of . _ : / -"
            )
        prefix = f"{{kvrelay:{namespace}}}"
        return cls(f"{prefix}:workers", f"{prefix}:blocks", f"{prefix}:dirty", f"{prefix}:bookings")

    def all(self) -> tuple[str, str, str, str]:
        """The keys as script arguments."""
        return self.workers, self.blocks, self.dirty, self.bookings


def booking_field(worker_id: str, request_id: str) -> str:
    """Field of one booking."""
    return f"{worker_id}\0{request_id}"
