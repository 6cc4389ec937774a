"""NVIDIA's aiperf, chats and completions, streamed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.client_checks.checks import Checks, Target, command, expect

REQUESTS = 6


def profile(target: Target, kind: str, *arguments: str) -> dict[str, Any]:
    """Runs one profile; returns what it exports."""
    folder = Path(target.folder) / f"{kind}-{len(arguments)}"
    command(
        [
            *("aiperf", "profile", "--model", target.model, "--tokenizer", target.model_dir),
            *("--url", target.http_url, "--endpoint-type", kind, "--concurrency", "2"),
            *("--request-count", str(REQUESTS), "--synthetic-input-tokens-mean", "32"),
            *("--output-tokens-mean", "8", "--ui", "none", "--output-artifact-dir", str(folder)),
            *arguments,
        ],
        # Offline it looks for every tokenizer in the hub's cache; online it takes a folder for what it is.
        {"HF_HUB_OFFLINE": ""},
    )  # fmt: skip
    found: dict[str, Any] = json.loads(next(folder.rglob("*aiperf.json")).read_text())
    return found


def main() -> None:
    """All checks."""
    checks, target = Checks(), Target.from_arguments()
    for kind in ("chat", "completions"):
        with checks(f"{kind}, streamed"):
            found = profile(target, kind, "--streaming", "--extra-inputs", "ignore_eos:true")
            expect(found["request_count"]["avg"] == REQUESTS, found["request_count"])
            expect(not found.get("error_summary"), found.get("error_summary"))
            expect(found["time_to_first_token"]["avg"] > 0, found["time_to_first_token"])
    with checks("chat, whole"):
        found = profile(target, "chat")
        expect(found["request_count"]["avg"] == REQUESTS, found["request_count"])
        expect(not found.get("error_summary"), found.get("error_summary"))


if __name__ == "__main__":
    main()
