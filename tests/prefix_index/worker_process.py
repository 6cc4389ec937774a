"""A worker process that only publishes. Arguments: URL, namespace, lease (s), number of blocks."""

from __future__ import annotations

import asyncio
import sys

from tests.prefix_index.support import Worker, names


async def main(url: str, namespace: str, lease_s: float, blocks: int) -> None:
    """Publishes for ever."""
    worker = Worker(url, namespace, "worker", incarnation=1, lease_s=lease_s)
    worker.blocks = dict.fromkeys(names(blocks))
    await worker.start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4])))
