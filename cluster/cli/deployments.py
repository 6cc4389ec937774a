"""How the commands find a running deployment."""

from __future__ import annotations

from typing import Annotated

import typer

from cluster.cli.console import fail
from cluster.environment import Environment, read_environment
from cluster.state import DeploymentState, StateFileError, read_state, running_deployments

DeploymentName = Annotated[str, typer.Option("--name", help="Name of the deployment.")]
ClientKey = Annotated[
    str | None,
    typer.Option(
        "--api-key",
        metavar="KEY",
        help="Where the deployment asks for one. Default: KVRELAY_API_KEY.",
        show_default=False,
    ),
]


def find_running(name: str) -> DeploymentState:
    """The live deployment of that name; ends the command with an error where there is none."""
    environment = read_environment()
    try:
        state = read_state(environment.run_dir, name)
    except StateFileError as error:
        fail(str(error))
    if state is None:
        fail(f"no deployment named {name!r} runs here{_others(environment, name)}")
    if not state.alive:
        fail(f"the deployment named {name!r} is gone: its supervisor (pid {state.supervisor.pid}) died")
    return state


def find_ready(name: str) -> DeploymentState:
    """As `find_running`, and it serves."""
    state = find_running(name)
    if state.external_routers:
        fail(f"the deployment named {name!r} has routers that run elsewhere: ask one of them directly")
    if not state.grpc_address:
        fail(f"the deployment named {name!r} is {state.phase}: its router does not serve now")
    return state


def key_for(state: DeploymentState, given: str | None) -> str | None:
    """The API key to send; ends the command with an error where one is needed and none is known."""
    key = given or read_environment().api_key or None
    if state.api_key_required and key is None:
        fail("the deployment asks for an API key: give --api-key or set KVRELAY_API_KEY")
    return key


def _others(environment: Environment, name: str) -> str:
    others = [other for other in running_deployments(environment.run_dir) if other != name]
    if others:
        return f"; these do: {', '.join(others)} (--name)"
    return f" (KVRELAY_HOME is {environment.home}); `kvrelay up` starts one"
