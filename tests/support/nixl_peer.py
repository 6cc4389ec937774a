"""Process that serves a filled pool over NIXL until its stdin ends.

Usage: python -m tests.support.nixl_peer NUM_BLOCKS BLOCK_BYTES
"""

from __future__ import annotations

import base64
import sys

import torch

from kv_transfer.registry import create
from kv_transfer.transports.base import TransportConfig
from tests.support.pools import filled_pool, region_of
from tests.support.transport_peers import READY


def main(num_blocks: int, block_bytes: int) -> None:
    """Prints the exported pool, then waits."""
    torch.set_num_threads(1)
    transport = create("nixl", TransportConfig("peer", 1))
    transport.register(region_of(filled_pool(num_blocks, block_bytes)))
    print(READY + base64.b64encode(transport.export()).decode(), flush=True)
    sys.stdin.read()
    transport.close()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
