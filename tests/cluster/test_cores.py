from __future__ import annotations

import os
from pathlib import Path

import pytest

from cluster.cores import usable_cores


def _cgroups(folder: Path, limits: dict[str, str], own: str) -> tuple[Path, Path]:
    root = folder / "cgroup"
    root.mkdir()
    for name, limit in limits.items():
        (root / name).mkdir(parents=True, exist_ok=True)
        (root / name / "cpu.max").write_text(limit)
    of_self = folder / "self"
    of_self.write_text(own)
    return root, of_self


@pytest.mark.parametrize(
    ("limits", "own", "quota"),
    [
        ({}, "0::/\n", 64),
        ({"pod/box": "max 100000\n"}, "0::/pod/box\n", 64),
        ({"pod/box": "150000 100000\n"}, "0::/pod/box\n", 2),
        ({"pod": "300000 100000\n", "pod/box": "max 100000\n"}, "0::/pod/box\n", 3),
        ({"pod/box": "10000 100000\n"}, "0::/pod/box\n", 1),
        ({"": "200000 100000\n"}, "0::/../../only/known/outside\n", 2),
        ({"pod": "nonsense\n"}, "0::/pod\n", 64),
        ({}, "4:cpu:/old\n", 64),
    ],
)
def test_the_quota_counts_where_it_is_below_the_mask(
    limits: dict[str, str], own: str, quota: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(64)))
    assert usable_cores(*_cgroups(tmp_path, limits, own)) == quota


def test_the_mask_counts_where_it_is_below_the_quota(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3})
    assert usable_cores(*_cgroups(tmp_path, {"pod": "800000 100000\n"}, "0::/pod\n")) == 1


def test_without_control_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2})
    assert usable_cores(tmp_path / "none", tmp_path / "none") == 3
