"""How many processor cores a process of this machine may use."""

from __future__ import annotations

import math
import os
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")
_CGROUP_OF_SELF = Path("/proc/self/cgroup")


def usable_cores(cgroup_root: Path = _CGROUP, cgroup_of_self: Path = _CGROUP_OF_SELF) -> int:
    """Cores that this process may keep busy, at least 1.

    The smaller of its affinity mask and the CPU quota of its control group and that group's parents (version
    2, `cpu.max`, rounded up): inside a container the mask shows the whole machine, and threads beyond the
    quota are all stopped together in the middle of a step.

    Args:
        cgroup_root: where the control groups are mounted.
        cgroup_of_self: file that names this process's group.
    """
    return max(1, math.ceil(min(len(os.sched_getaffinity(0)), _quota(cgroup_root, cgroup_of_self))))


def _quota(root: Path, of_self: Path) -> float:
    """Cores' worth of time that the control groups allow; infinite where they say nothing."""
    try:
        lines = of_self.read_text().splitlines()
    except OSError:
        return math.inf
    own = next((line.removeprefix("0::") for line in lines if line.startswith("0::")), "/")
    # A container may see its own group as the root, under a path that only its host knows.
    group = root if ".." in own else root / own.lstrip("/")
    return min(_quota_of(each) for each in (group, *group.parents) if each.is_relative_to(root))


def _quota_of(group: Path) -> float:
    try:
        allowed, period = (group / "cpu.max").read_text().split()
        return math.inf if allowed == "max" else int(allowed) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        # The root group has no such file, and version 1 none at all.
        return math.inf
