"""The one place that reads environment variables."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Environment:
    """What the environment says.

    Attributes:
        home: KVRELAY_HOME, default ~/.cache/kvrelay: models, logs, state files and built kernels.
        api_key: KVRELAY_API_KEY, for servers and clients; empty for none.
        log_level: KVRELAY_LOG_LEVEL, below what a spec or an option says; empty for none.
        log_format: KVRELAY_LOG_FORMAT, likewise.
        python_path: PYTHONPATH, handed on to the processes that are started (see `import_path`).
    """

    home: Path
    api_key: str
    log_level: str
    log_format: str
    python_path: str

    @property
    def import_path(self) -> str:
        """PYTHONPATH of the processes that are started: the folders of our own packages come first."""
        root = Path(__file__).resolve().parent.parent
        return os.pathsep.join(filter(None, [str(root), str(root / "client"), self.python_path]))

    @property
    def run_dir(self) -> Path:
        """State files of running deployments."""
        return self.home / "run"

    @property
    def kernel_dir(self) -> Path:
        """Kernels for the CPU that were built where the installation brought none."""
        return self.home / "kernels"

    @property
    def log_dir(self) -> Path:
        """Logs of the router, the embedded Redis and the workers of a local Ray."""
        return self.home / "logs"


def read_environment(variables: Mapping[str, str] = os.environ) -> Environment:
    """Reads the variables that kvrelay knows; an empty one counts as unset."""
    home = variables.get("KVRELAY_HOME") or "~/.cache/kvrelay"
    return Environment(
        home=Path(home).expanduser().absolute(),
        api_key=variables.get("KVRELAY_API_KEY", ""),
        log_level=variables.get("KVRELAY_LOG_LEVEL", ""),
        log_format=variables.get("KVRELAY_LOG_FORMAT", ""),
        python_path=variables.get("PYTHONPATH", ""),
    )


def inherited_environment() -> dict[str, str]:
    """What a child process gets unless told otherwise."""
    return dict(os.environ)


def export(name: str, value: str) -> None:
    """Sets a variable for this process and its later children: Ray and its workers are told that way."""
    os.environ[name] = value
