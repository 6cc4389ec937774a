"""What is peculiar to NIXL; what it shares with other transports is in tests/contracts/test_transport.py."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from kv_transfer.transports.base import PullState, TransportConfig
from kv_transfer.transports.nixl import NixlTransport
from kv_transfer.types import PeerLostError, PoolRegion, TransferError
from tests.support.pools import empty_pool, filled_pool, region_of
from tests.support.transport_peers import NixlPeer
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
UCX_SETTINGS = ("UCX_NET_DEVICES", "UCX_TLS", "UCX_LOG_LEVEL", "UCX_LOG_FILE")
OPEN = """
import os, sys, time
import psutil
from kv_transfer.transports.base import TransportConfig
from kv_transfer.transports.nixl import NixlTransport
from tests.support.pools import empty_pool, region_of
transport = NixlTransport(TransportConfig("w", 1, host=sys.argv[1]))
pool = empty_pool()
transport.register(region_of(pool))
"""


def in_a_process(program: str, host: str = "127.0.0.1", **settings: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name not in UCX_SETTINGS}
    return subprocess.run(
        [sys.executable, "-c", OPEN + program, host],
        cwd=ROOT,
        env=environment | {"OMP_NUM_THREADS": "1"} | settings,
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_on_loopback_nothing_listens_to_the_outside_and_nothing_is_printed() -> None:
    result = in_a_process(
        "ports = [c.laddr for c in psutil.Process().net_connections() if c.status == 'LISTEN']\n"
        "assert ports and all(p.ip == '127.0.0.1' for p in ports), ports\n"
        "transport.close()"
    )
    assert (result.stdout, result.stderr) == ("", "")


def test_nixls_own_lines_go_the_way_of_all_logs() -> None:
    result = in_a_process("import logging; logging.getLogger('nixl.api').warning('a line of NIXL')")
    assert (result.stdout, result.stderr) == ("", "a line of NIXL\n")


def test_the_operators_settings_win() -> None:
    result = in_a_process("print(os.environ['UCX_TLS'], os.environ['UCX_NET_DEVICES'])", UCX_TLS="tcp")
    assert result.stdout.split() == ["tcp", "lo"]


def test_elsewhere_devices_are_left_to_ucx() -> None:
    result = in_a_process("print('UCX_TLS' in os.environ, 'UCX_NET_DEVICES' in os.environ)", host="10.0.0.1")
    assert result.stdout.split() == ["False", "False"]


def test_the_progress_thread_does_not_spin() -> None:
    # Spinning it takes a whole core: the processor time of a second would be near a second.
    in_a_process(
        "before = sum(psutil.Process().cpu_times()[:2])\n"
        "time.sleep(1)\n"
        "used = sum(psutil.Process().cpu_times()[:2]) - before\n"
        "assert used < 0.4, used"
    )


def test_names_are_unique_even_for_one_incarnation() -> None:
    transports = [NixlTransport(TransportConfig("w", 7)) for _ in range(2)]
    pools = [empty_pool(), empty_pool()]
    for transport, pool in zip(transports, pools, strict=True):
        transport.register(region_of(pool))
    keys = {transports[0].connect(transports[1].export()), transports[1].connect(transports[0].export())}
    assert len(keys) == 2
    assert all(key.startswith("w.7.") for key in keys)
    for transport in transports:
        transport.close()


def test_the_process_before_is_forgotten_with_the_first_word_of_its_successor() -> None:
    reader, pool = NixlTransport(TransportConfig("reader", 1)), empty_pool()
    reader.register(region_of(pool))
    # The dots of worker ids must not confuse it; prefill.1 is another worker.
    workers = [("prefill", 9), ("prefill.1", 1), ("prefill", 10)]
    peers = [NixlTransport(TransportConfig(*worker)) for worker in workers]
    for peer in peers:
        peer.register(region_of(filled_pool()))
    old, other, new = [reader.connect(peer.export()) for peer in peers]
    with pytest.raises(PeerLostError):
        reader.start_pull(old, [1], [1])
    # A late word of the old one takes nothing away from the new one.
    reader.connect(peers[0].export())
    for key in (other, new):
        pull = reader.start_pull(key, [1], [1])
        wait_until(lambda pull=pull: pull.poll() is PullState.DONE)
    for transport in (reader, *peers):
        transport.close()


def test_broken_metadata_and_other_versions_are_refused() -> None:
    transport = NixlTransport(TransportConfig("w", 1))
    pool = empty_pool()
    transport.register(region_of(pool))
    exported = transport.export()
    with pytest.raises(TransferError, match="NIXL refuses the peer"):
        transport.connect(exported[:40] + b"?" * 40)
    with pytest.raises(TransferError, match="version 2, not 1"):
        transport.connect(exported[:4] + b"\x02" + exported[5:])
    transport.close()
    with pytest.raises(RuntimeError, match="closed"):
        transport.connect(exported)


def test_device_memory_is_refused() -> None:
    transport = NixlTransport(TransportConfig("w", 1))
    owner = empty_pool().to("meta")
    with pytest.raises(ValueError, match="host memory only, not that of meta"):
        transport.register(PoolRegion(0, 1, 4096, owner))
    transport.close()


def test_polling_never_waits_for_a_thread_that_is_copying() -> None:
    transport = NixlTransport(TransportConfig("w", 1))
    pool = empty_pool()
    transport.register(region_of(pool))
    peer = NixlPeer(pool[0].numel())
    peer.hang()
    pull = transport.start_pull(transport.connect(peer.exported), [1], [1])
    copying, finish = threading.Event(), threading.Event()

    def copy() -> None:
        # Stands for a long `start_pull`: the lock that it holds while it posts.
        with transport._lock:
            copying.set()
            finish.wait(60)

    thread = threading.Thread(target=copy)
    thread.start()
    try:
        assert copying.wait(60)
        peer.kill()
        answers: list[PullState] = []
        poller = threading.Thread(target=lambda: answers.append(pull.poll()))
        poller.start()
        poller.join(30)
        assert answers == [PullState.PENDING]
    finally:
        finish.set()
        thread.join()
    wait_until(lambda: pull.poll() is PullState.FAILED)
    transport.close()
