"""guidellm, synchronous and concurrent, with synthetic prompts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.client_checks.checks import Checks, Target, command, expect

REQUESTS = 5


def benchmark(target: Target, name: str, profile: str) -> list[Any]:
    """Runs one; returns its report's benchmarks."""
    report = Path(target.folder) / f"{name}.json"
    backend = f"kind=openai_http,target={target.http_url},model={target.model}"
    command(
        [
            *("guidellm", "run", "--backend", backend, "--profile", profile),
            *("--tokenizer", f"kind=huggingface_auto,model={target.model_dir}"),
            *("--data", "kind=synthetic_text,prompt_tokens=32,output_tokens=8"),
            *("--constraint", f"kind=max_requests,count={REQUESTS}"),
            *("--output", f"kind=json,path={report}", "--disable-console"),
        ]
    )  # fmt: skip
    found: list[Any] = json.loads(report.read_text())["benchmarks"]
    return found


def main() -> None:
    """All checks."""
    checks, target = Checks(), Target.from_arguments()
    for name, profile in (
        ("one at a time", "kind=synchronous"),
        ("three at once", "kind=concurrent,streams=3"),
    ):
        with checks(f"chat, {name}"):
            (found,) = benchmark(target, name.replace(" ", "-"), profile)
            totals = found["metrics"]["request_totals"]
            expect(totals["successful"] == REQUESTS and not totals["errored"], totals)


if __name__ == "__main__":
    main()
