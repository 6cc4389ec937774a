"""The state file of a running deployment: how other commands find it."""

from __future__ import annotations

import os
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from cluster.processes import ProcessId, is_alive


class ProcessRecord(BaseModel):
    """One process of a deployment.

    `name` says what it is ("router", "redis", "prefill-0"), `node_id` on which machine, empty for this one.
    """

    model_config = ConfigDict(frozen=True)

    name: str
    pid: int
    start_ticks: int
    node_id: str = ""


class DeploymentState(BaseModel):
    """What the supervisor tells about its deployment. Written anew on each change; holds no secret.

    `phase` is "starting", "ready" or "stopping". Addresses are host:port, or URLs where the name says so.
    `troubles` says why a part does not serve, of each that does not. Where `external_routers` names routers,
    `admin_address` is that of one of them and their other doors are unknown here.
    """

    model_config = ConfigDict(frozen=True)

    name: str
    instance: str
    supervisor: ProcessRecord
    phase: str
    served_name: str = ""
    http_url: str = ""
    grpc_address: str = ""
    admin_address: str = ""
    external_routers: tuple[str, ...] = ()
    redis_url: str = ""
    ray_address: str = ""
    dashboard_url: str = ""
    api_key_required: bool = False
    log_dir: Path | None = None
    troubles: dict[str, str] = {}
    processes: tuple[ProcessRecord, ...] = ()

    @property
    def alive(self) -> bool:
        """Whether the supervisor runs; else the file is a leftover."""
        return is_alive(ProcessId(self.supervisor.pid, self.supervisor.start_ticks))


class StateFileError(Exception):
    """A state file cannot be read; the message names it."""


def state_path(run_dir: Path, name: str) -> Path:
    """Where the deployment of that name keeps its state."""
    return run_dir / f"{name}.json"


def write_state(run_dir: Path, state: DeploymentState) -> None:
    """Replaces the file in one step, readable by its owner only. Raises OSError; the old one stays then."""
    run_dir.mkdir(parents=True, exist_ok=True)
    path = state_path(run_dir, state.name)
    fresh = path.with_suffix(".tmp")
    try:
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(state.model_dump_json(indent=2))
        fresh.replace(path)
    except OSError:
        fresh.unlink(missing_ok=True)
        raise


def read_state(run_dir: Path, name: str) -> DeploymentState | None:
    """The deployment's state, alive or not; None where there is none. Raises StateFileError."""
    path = state_path(run_dir, name)
    try:
        return DeploymentState.model_validate_json(path.read_text())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StateFileError(f"{path} cannot be read: {error.strerror}") from None
    except ValidationError as error:
        raise StateFileError(f"{path} is not a state file of this version: {error}") from None


def remove_state(run_dir: Path, name: str) -> None:
    """Deletes the file, if there is one."""
    state_path(run_dir, name).unlink(missing_ok=True)


def running_deployments(run_dir: Path) -> list[str]:
    """Names of all deployments whose supervisor lives. Unreadable files are left out."""
    names: list[str] = []
    for path in sorted(run_dir.glob("*.json")):
        try:
            state = read_state(run_dir, path.stem)
        except StateFileError:
            continue
        if state is not None and state.alive:
            names.append(state.name)
    return names
