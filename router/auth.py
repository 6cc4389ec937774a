"""API keys, for both doors: `Authorization: Bearer KEY`, in HTTP a header, in gRPC metadata.

With keys configured everything needs one but:

- `/health`, `/ping`, `/ready` and `grpc.health.v1`: probes have no keys, and learn only whether the process
  works;
- `/metrics`: Prometheus scrapes it from inside the cluster, and it holds counts, never content. Where clients
  can reach the port, let the ingress hide this path;
- `/docs` and `/openapi.json`: they describe the public API, the same for every installation.

RouterAdmin is on an address and port of its own that clients must not reach, and has no key.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence

OPEN_PATHS = frozenset(("/health", "/ping", "/ready", "/metrics", "/docs", "/openapi.json"))
OPEN_SERVICES = frozenset(("grpc.health.v1.Health",))
MESSAGE = "A valid API key is needed: send 'Authorization: Bearer KEY'."


class ApiKeys:
    """The keys of one router; without any, everybody may come in."""

    def __init__(self, keys: Sequence[str]) -> None:
        if "" in keys:
            raise ValueError("an API key must not be empty")
        self._keys = [key.encode() for key in keys]

    def accepts(self, authorization: bytes) -> bool:
        """Whether an Authorization value names a key. Takes the same time whichever key is nearly right."""
        if not self._keys:
            return True
        scheme, _, given = authorization.partition(b" ")
        matches = [hmac.compare_digest(key, given.strip()) for key in self._keys]
        return any(matches) and scheme.lower() == b"bearer"
