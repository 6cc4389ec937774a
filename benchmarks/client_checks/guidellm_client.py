"""guidellm, synchronous and concurrent, with synthetic prompts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.client_checks.checks import Checks, Target, command, expect

REQUESTS = 5


def benchmark(target: Target, name: str, *arguments: str) -> list[Any]:
    """Runs one; returns its report's benchmarks."""
    folder = Path(target.folder) / name
    folder.mkdir()
    command(
        [
            *("guidellm", "benchmark", "run", "--target", target.http_url, "--model", target.model),
            *("--processor", target.model_dir, "--data", "prompt_tokens=32,output_tokens=8"),
            *("--max-requests", str(REQUESTS), "--output-dir", str(folder), "--outputs", "json"),
            *("--disable-console", *arguments),
        ],
        {"HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    found: list[Any] = json.loads(next(folder.rglob("*.json")).read_text())["benchmarks"]
    return found


def main() -> None:
    """All checks."""
    checks, target = Checks(), Target.from_arguments()
    for name, arguments in (
        ("chat, one at a time", ("--profile", "synchronous")),
        ("chat, 3 at once", ("--profile", "concurrent", "--rate", "3")),
    ):
        with checks(name):
            (found,) = benchmark(target, name.replace(" ", "-"), *arguments)
            totals = found["metrics"]["request_totals"]
            expect(totals["successful"] == REQUESTS and not totals["errored"], totals)


if __name__ == "__main__":
    main()
