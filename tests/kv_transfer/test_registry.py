from __future__ import annotations

import subprocess
import sys

import pytest

from kv_transfer import registry
from kv_transfer.transports.base import TransportConfig
from kv_transfer.types import NoCommonTransportError


def test_names_are_the_files() -> None:
    assert registry.names() == ("in_process", "nixl")


def test_an_unknown_transport_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="'carrier_pigeon' is not one of in_process, nixl"):
        registry.create("carrier_pigeon", TransportConfig("w", 1))


def test_the_readers_first_choice_wins() -> None:
    assert registry.choose(["nixl", "in_process"], ["in_process", "nixl"]) == "nixl"
    assert registry.choose(["nixl", "in_process"], ["in_process"]) == "in_process"


@pytest.mark.parametrize(
    ("offered", "supported", "message"),
    [
        (["nixl"], ["in_process"], "the reader offers nixl; this worker supports in_process"),
        ([], ["nixl"], "the reader offers none"),
    ],
)
def test_no_common_transport(offered: list[str], supported: list[str], message: str) -> None:
    with pytest.raises(NoCommonTransportError, match=message):
        registry.choose(offered, supported)


def test_only_the_chosen_transport_is_loaded() -> None:
    program = (
        "import sys; from kv_transfer import registry; from kv_transfer.transports import base;"
        "registry.create('in_process', base.TransportConfig('w', 1)); assert 'nixl' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


@pytest.mark.parametrize("module", ["tickets", "attempts"])
def test_bookkeeping_needs_no_torch_and_no_grpc(module: str) -> None:
    program = f"import sys, kv_transfer.{module}; assert not {{'torch', 'grpc', 'nixl'}} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
