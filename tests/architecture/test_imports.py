"""Who may import whom. The table is docs/architecture.md's; change both or neither."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.architecture.source import (
    ROOT,
    function_level_imports,
    imports_of,
    is_generated,
    room_of,
    tracked_files,
)

WORKER_ROOMS = {"worker", "engine", "kv_transfer", "prefix_index", "kvrelay", "telemetry"}
ALLOWED_ROOMS: dict[str, set[str]] = {
    "kvrelay": set(),
    "telemetry": set(),
    "grammars": set(),
    "prefix_index": {"telemetry"},
    "router": {"kvrelay", "grammars", "prefix_index", "telemetry"},
    "kv_transfer": {"kvrelay", "telemetry"},
    "engine": {"grammars", "telemetry"},
    "training": {"engine", "telemetry"},
    "worker": WORKER_ROOMS - {"worker"},
    "prefill_worker": WORKER_ROOMS,
    "decode_worker": WORKER_ROOMS,
}
ALLOWED_ROOMS["cluster"] = {*ALLOWED_ROOMS, "cluster"}
FORBIDDEN_PACKAGES: dict[str, set[str]] = {
    "kvrelay": {"torch", "ray", "redis", "pydantic", "numpy"},
    "telemetry": {"torch", "ray", "grpc", "redis"},
    "grammars": {"torch", "ray", "grpc", "redis"},
    "prefix_index": {"torch", "ray", "grpc", "nixl"},
    "router": {"torch", "ray", "nixl", "transformers", "safetensors"},
    "kv_transfer": {"ray", "redis"},
    "engine": {"grpc", "ray", "redis", "nixl", "kvrelay"},
    "training": {"grpc", "ray", "redis", "nixl"},
    "worker": {"ray"},
    "prefill_worker": {"ray"},
    "decode_worker": {"ray"},
}
# Scheduling and bookkeeping: testable in microseconds, and no tensor can hide in them.
TORCH_FREE = (
    "engine/api.py",
    "engine/config.py",
    "engine/loop.py",
    "engine/scheduler.py",
    "engine/sequence.py",
    "engine/step_cost.py",
    "engine/prefill_budget.py",
    "engine/kv/block_pool.py",
    "engine/kv/swap.py",
    "engine/kv/prefix_cache.py",
)
SOURCES = [
    path for path in tracked_files("*.py") if room_of(path) in ALLOWED_ROOMS and not is_generated(path)
]


@pytest.mark.parametrize("room", sorted(ALLOWED_ROOMS))
def test_a_room_imports_only_what_it_may(room: str) -> None:
    sources = [path for path in SOURCES if room_of(path) == room]
    assert sources, f"no source files found for {room}"
    forbidden = FORBIDDEN_PACKAGES.get(room, set())
    wrong = []
    for path in sources:
        for name in imports_of(path):
            top = name.partition(".")[0]
            if top in forbidden or (top in ALLOWED_ROOMS and top not in ALLOWED_ROOMS[room] | {room}):
                wrong.append(f"{path.relative_to(ROOT)} imports {name}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("name", TORCH_FREE)
def test_scheduling_knows_no_torch(name: str) -> None:
    assert not {module for module in imports_of(ROOT / name) if module.partition(".")[0] == "torch"}


def test_imports_stand_at_the_top() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in SOURCES
        if room_of(path) != "cluster"
        for line in function_level_imports(path)
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("router.app", ("torch", "ray", "nixl", "transformers")),
        ("kvrelay", ("torch", "ray", "redis", "pydantic", "numpy", "fastapi")),
        ("prefix_index.index", ("torch", "ray", "grpc")),
        ("engine.scheduler", ("torch", "ray", "grpc", "redis")),
        # Commands check models, and load none.
        ("cluster.cli.main", ("torch", "ray", "nixl")),
    ],
)
def test_importing_a_room_loads_no_heavy_package(module: str, absent: tuple[str, ...]) -> None:
    program = (
        f"import sys; sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / 'client')!r}]; import {module}; "
        f"print([name for name in {absent!r} if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip().splitlines()[-1] == "[]"


def test_proto_is_never_a_package() -> None:
    """The import name belongs to proto-plus, which Ray pulls in."""
    assert not list((ROOT / "proto").rglob("__init__.py"))
