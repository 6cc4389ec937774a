"""Why a worker process ended, as far as Ray knows: it kills processes itself where memory runs out."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from telemetry.logs import fields

logger = logging.getLogger(__name__)

# Ray 2.60's words: WorkerExitType in its common.proto, and the beginning of the detail.
_OUT_OF_MEMORY = "NODE_OUT_OF_MEMORY"
_USED = re.compile(r"was (?P<used>[\d.]+)GB used / (?P<limit>[\d.]+)GB limit")
_THRESHOLD = re.compile(r"exceeded threshold of \d+B \((?P<percent>[\d.]+)%")

# Ray learns of a death when a socket closes, and its tables show it a moment later.
_KNOWN_WITHIN_S = 2.0
_NAP_S = 0.2
_ASK_TIMEOUT_S = 2
_MOST_PROCESSES = 1000


@dataclass(frozen=True, slots=True)
class EndedProcess:
    """A worker process as Ray's tables have it once it has ended."""

    pid: int
    exit_type: str
    exit_detail: str
    end_time_ms: int


def cause_of(ended: EndedProcess) -> str:
    """In words, with what can be done about it; empty where Ray knows no more than that it ended."""
    if ended.exit_type != _OUT_OF_MEMORY:
        return ""
    used, threshold = _USED.search(ended.exit_detail), _THRESHOLD.search(ended.exit_detail)
    how_full = f": {used['used']} of {used['limit']} GB were in use" if used else ""
    bound = f" (now {threshold['percent']} %)" if threshold else ""
    return (
        f"killed by Ray's memory monitor, as the machine ran out of memory{how_full}; give workers less "
        "(kv_memory, swap_memory, fewer replicas), end what else uses memory, or start Ray with a higher "
        f"RAY_memory_usage_threshold{bound}"
    )


class RayDeaths:
    """Asks Ray's state API. Every call blocks, for seconds at worst.

    Args:
        dashboard_url: where that API is; without one nothing is known.
    """

    def __init__(self, dashboard_url: str) -> None:
        self._url = dashboard_url

    def cause(self, node_id: str, pid: int) -> str:
        """Why that process ended, as `cause_of`; waits a moment for Ray to know that it has."""
        give_up_at = time.monotonic() + _KNOWN_WITHIN_S
        while self._url:
            ended = self._ended({"node_id": node_id, "pid": str(pid)})
            if ended:
                return cause_of(ended[-1])
            if time.monotonic() > give_up_at:
                break
            time.sleep(_NAP_S)
        return ""

    def latest_kill(self, since_unix_s: float) -> str:
        """The last time since then that a process was killed for want of memory, as `cause_of`."""
        if not self._url:
            return ""
        killed = self._ended({"exit_type": _OUT_OF_MEMORY})
        if not killed or killed[-1].end_time_ms < since_unix_s * 1e3:
            return ""
        return cause_of(killed[-1])

    def _ended(self, wanted: Mapping[str, str]) -> Sequence[EndedProcess]:
        """In the order of their ends. Empty where Ray does not answer, which is logged."""
        # Here, for it takes half a second that no start should wait for.
        from ray.util.state import list_workers

        try:
            found = list_workers(
                address=self._url,
                filters=[("is_alive", "=", "False"), *((key, "=", value) for key, value in wanted.items())],
                limit=_MOST_PROCESSES,
                timeout=_ASK_TIMEOUT_S,
                detail=True,
                raise_on_missing_output=False,
            )
        # Ray's own, those of requests, or of a JSON that is none: whatever it is, only the reason is lacking.
        except Exception as error:
            logger.warning("Ray does not say how a process ended", extra=fields(error=str(error)))
            return ()
        ended = [
            EndedProcess(each.pid, each.exit_type or "", each.exit_detail or "", int(each.end_time_ms or 0))
            for each in found
        ]
        return sorted(ended, key=lambda each: each.end_time_ms)
