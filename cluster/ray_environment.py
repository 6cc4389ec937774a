"""What Ray reads from the environment, set before Ray is imported: it looks only once.

Two facts of Ray 2.60 shape this. Ray replaces 127.0.0.1 by the machine's outward address, and its servers
then listen on all interfaces; only what it calls "no cluster mode", meant for desktop systems, binds the
loopback address. And even there a web page in a browser on the same machine can reach the dashboard, which
runs what it is sent: so a token is asked for unless the spec says otherwise.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from cluster.environment import Environment, export
from cluster.spec import RaySpec

# Ray prints a paragraph for each worker that dies. The supervisor says so itself, in a line.
_NOT_PRINTED = "^A worker died or was killed"
_TOKEN_FILE = "ray_auth_token"
_TOKEN_BYTES = 32


def prepare_ray(environment: Environment, spec: RaySpec) -> Path | None:
    """Before Ray is imported. Returns the file of a local Ray's token; None where we choose none."""
    export("RAY_DEDUP_LOGS_SKIP_REGEX", _NOT_PRINTED)
    if spec.address:
        # Its own users know how it authenticates.
        return None
    export("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    export("RAY_USAGE_STATS_ENABLED", "0")
    export("RAY_AUTH_MODE", spec.auth)
    # Its workers start ahead of need, before anybody could tell them one by one.
    export("PYTHONPATH", environment.import_path)
    # Ray's default of 15 is for batch jobs: any other process of the machine would come first.
    export("RAY_worker_niceness", "0")
    # Every five seconds its dashboard would add up its own processes' memory: a hundredth of a core.
    export("METRICS_RECORD_INTERVAL_S", "60")
    if spec.auth != "token":
        return None
    path = environment.home / _TOKEN_FILE
    if not path.exists():
        environment.home.mkdir(parents=True, exist_ok=True)
        fresh = path.with_suffix(f".{os.getpid()}")
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(secrets.token_hex(_TOKEN_BYTES))
        fresh.replace(path)
    export("RAY_AUTH_TOKEN_PATH", str(path))
    return path
