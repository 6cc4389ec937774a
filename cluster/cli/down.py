"""`kvrelay down`: ends a deployment."""

from __future__ import annotations

import signal
import time
from typing import Annotated

import typer

from cluster.cli.console import OUT, StepReporter, fail
from cluster.cli.deployments import DeploymentName
from cluster.environment import read_environment
from cluster.leftovers import clean_up_after
from cluster.processes import ProcessId, send_signal, wait_for_end
from cluster.state import StateFileError, read_state

_KILL_S = 10.0


def down(
    name: DeploymentName = "default",
    timeout: Annotated[
        float, typer.Option(min=1.0, help="Seconds to wait for running requests before ending it by force.")
    ] = 60.0,
) -> None:
    """End a running deployment: running requests first, then every process that it started."""
    run_dir = read_environment().run_dir
    try:
        state = read_state(run_dir, name)
    except StateFileError as error:
        fail(str(error))
    if state is None:
        fail(f"no deployment named {name!r} runs here")
    supervisor = ProcessId(state.supervisor.pid, state.supervisor.start_ticks)
    was_alive = state.alive
    deadline = time.monotonic() + timeout
    with StepReporter() as reporter:
        reporter.begin(f"Stopping {name}")
        if send_signal(supervisor, signal.SIGTERM) and not wait_for_end(
            supervisor, deadline - time.monotonic()
        ):
            reporter.note(f"still running after {timeout:g} s; ending it by force")
            send_signal(supervisor, signal.SIGKILL)
            wait_for_end(supervisor, _KILL_S)
        # Nothing is left after an orderly end; this is for one that was not.
        if survivors := clean_up_after(run_dir, state):
            fail("could not end: " + ", ".join(str(process.pid) for process in survivors))
    end = "is stopped." if was_alive else "was gone already; cleaned up what it left."
    OUT.print(f"{name} {end}", markup=False)
