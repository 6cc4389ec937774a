"""What `up` and `demo` share: from a spec to a served deployment, and back to nothing."""

from __future__ import annotations

import asyncio
import json
import shlex
import signal
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import typer
from rich.markup import escape
from rich.table import Table

from cluster.cli.console import OUT, USAGE, StepReporter, fail, of_files
from cluster.environment import Environment, read_environment
from cluster.errors import SupervisorError
from cluster.model_store.store import ModelEntry, resolve
from cluster.ray_environment import prepare_ray
from cluster.spec import DeploymentSpec
from cluster.spec_loading import Override, SpecError, load_spec
from cluster.state import DeploymentState
from engine.models.errors import ModelError
from kvrelay import KvrelayError
from telemetry import logs


@dataclass(frozen=True, slots=True)
class Served:
    """A deployment that serves: what was asked for, what came of it, and the file of Ray's token, if any."""

    spec: DeploymentSpec
    state: DeploymentState
    token: Path | None


WhenReady = Callable[[Served], Awaitable[bool]]
"""Called once the deployment serves; True goes on serving, False stops."""


def serve(path: Path | None, overrides: Sequence[Override], when_ready: WhenReady) -> None:
    """Brings the deployment up, calls `when_ready`, and serves until Ctrl-C or SIGTERM.

    Ends the command with an error message where something cannot be started.
    """
    environment = read_environment()
    try:
        spec = load_spec(path, overrides, environment)
    except SpecError as error:
        fail(str(error), USAGE)
    # The supervisor's events are shown by the reporter; its log is for those who ask for more.
    logs.configure("supervisor", "debug" if spec.log.level == "debug" else "error", spec.log.format)
    with StepReporter() as reporter:
        try:
            model = resolve(spec.model, environment.home, reporter.model_progress)
        except ModelError as error:
            fail(f"model: {error}")
        except OSError as error:
            fail(f"model: {of_files(error, environment)}")
        reporter.done()
        try:
            token = prepare_ray(environment, spec.ray)
        except OSError as error:
            fail(of_files(error, environment))
        try:
            asyncio.run(_serve(spec, model, environment, reporter, token, when_ready))
        except (SupervisorError, KvrelayError) as error:
            fail(str(error))
        except KeyboardInterrupt:
            # Before our own handlers were there.
            raise typer.Exit(130) from None


async def _serve(
    spec: DeploymentSpec,
    model: ModelEntry,
    environment: Environment,
    reporter: StepReporter,
    token: Path | None,
    when_ready: WhenReady,
) -> None:
    # Here and not above: Ray, which this imports, reads its environment once, at import, and takes a second.
    from cluster.supervisor import Supervisor

    stop, hurry = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        # The second one does not wait for running requests.
        loop.add_signal_handler(number, lambda: (hurry if stop.is_set() else stop).set())
    supervisor = Supervisor(spec, model, environment, reporter)
    starting = asyncio.create_task(supervisor.start())
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            try:
                state = starting.result()
            except SupervisorError:
                reporter.failed()
                raise
            reporter.done()
            await _run(supervisor.run(stop), when_ready(Served(spec, state, token)), stop)
    finally:
        for task in (starting, stopping):
            task.cancel()
        await asyncio.gather(starting, stopping, return_exceptions=True)
        await supervisor.stop(hurry)
        reporter.done()


async def _run(supervision: Awaitable[None], greeting: Awaitable[bool], stop: asyncio.Event) -> None:
    running = asyncio.ensure_future(supervision)
    greeted = asyncio.ensure_future(greeting)
    try:
        await asyncio.wait({running, greeted}, return_when=asyncio.FIRST_COMPLETED)
        if greeted.done() and not greeted.result():
            stop.set()
        await running
    finally:
        for task in (running, greeted):
            task.cancel()
        await asyncio.gather(running, greeted, return_exceptions=True)


def print_addresses(served: Served) -> None:
    """Where everything is, with a request to try."""
    spec, state, token = served.spec, served.state, served.token
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    if state.external_routers:
        table.add_row("Routers", escape(", ".join(state.external_routers)))
    else:
        table.add_row("OpenAI endpoint", f"{state.http_url}/v1")
        table.add_row("gRPC", state.grpc_address)
        table.add_row("Metrics", f"{state.http_url}/metrics")
    if state.dashboard_url:
        asks = f"  (asks for the token in {token})" if token else ""
        table.add_row("Ray dashboard", escape(state.dashboard_url + asks))
    if not spec.ray.address and token is None:
        table.add_row("", "Ray asks for no token: whoever reaches its ports on this machine can run code")
    table.add_row("Logs", escape(str(state.log_dir)))
    OUT.print()
    OUT.print(f"[bold green]{escape(state.served_name)}[/] is served. Ctrl-C stops it.")
    OUT.print(table)
    OUT.print()
    if not state.external_routers:
        # Whole and without markup: it is there to be copied.
        OUT.print(curl_line(state), markup=False)
        OUT.print()


def curl_line(state: DeploymentState) -> str:
    """A request that works when pasted into a shell."""
    body = {
        "model": state.served_name,
        "messages": [{"role": "user", "content": "What is the capital of France?"}],
        "max_tokens": 64,
    }
    key = " -H 'Authorization: Bearer '\"$KVRELAY_API_KEY\"" if state.api_key_required else ""
    return (
        f"curl {state.http_url}/v1/chat/completions -H 'Content-Type: application/json'{key} "
        f"-d {shlex.quote(json.dumps(body))}"
    )
