"""What a deployment leaves behind whose supervisor did not end in good order."""

from __future__ import annotations

from pathlib import Path

from cluster.processes import ProcessId, end_marked
from cluster.router_files import RouterFiles
from cluster.state import DeploymentState, remove_state

_SWEEP_S = 10.0


def clean_up_after(run_dir: Path, state: DeploymentState) -> list[ProcessId]:
    """Ends its processes and removes its files. Blocks. Raises OSError.

    Args:
        run_dir: folder of the state files.
        state: the last that it wrote; its supervisor must be gone.

    Returns:
        Processes that could not be ended; the files stay then, so that another try finds them.
    """
    # Its guardian has done this, unless the guardian was killed too.
    survivors = end_marked(state.instance, _SWEEP_S)
    if not survivors:
        RouterFiles.of(run_dir, state.name).remove()
        remove_state(run_dir, state.name)
    return survivors
