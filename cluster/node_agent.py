"""One small actor a node: ends processes that no longer listen to anything else."""

from __future__ import annotations

import signal

from cluster.processes import ProcessId, is_alive, send_signal


class NodeAgent:
    """Runs on the node whose processes it may end."""

    def kill(self, process: ProcessId) -> bool:
        """SIGKILLs that very process, stopped or hung. False where it is gone already."""
        return send_signal(process, signal.SIGKILL)

    def is_alive(self, process: ProcessId) -> bool:
        """Whether that very process still exists."""
        return is_alive(process)
