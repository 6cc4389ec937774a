"""The files between a deployment's supervisor and the router that it starts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class RouterFiles:
    """Where they are, by the deployment's name alone: whoever cleans up after a crash knows no more.

    Attributes:
        config: the router's settings; readable by its owner only, for an API key may be among them.
        addresses: where the router listens, written by it.
    """

    config: Path
    addresses: Path

    @classmethod
    def of(cls, run_dir: Path, deployment: str) -> RouterFiles:
        """Those of a deployment."""
        return cls(run_dir / f"{deployment}-router-0.config.json", run_dir / f"{deployment}.router-addresses")

    def remove(self) -> None:
        """Deletes those that are there. Raises OSError."""
        self.config.unlink(missing_ok=True)
        # Half written, where its writer was killed.
        self.config.with_suffix(".tmp").unlink(missing_ok=True)
        self.addresses.unlink(missing_ok=True)
