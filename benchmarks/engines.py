"""Runs requests through an engine in this process, the way each parity mode asks for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.progress import Progress

from engine.api import Engine, EngineRequest


def run_concurrently(
    engine: Engine, requests: Sequence[EngineRequest], concurrency: int, label: str
) -> dict[str, list[int]]:
    """Token ids of every request, `concurrency` of them in flight at a time. Raises on any failure."""
    answers: dict[str, list[int]] = {request.request_id: [] for request in requests}
    waiting = list(reversed(requests))
    in_flight = 0
    with Progress() as progress:
        task = progress.add_task(label, total=len(requests))
        while waiting or in_flight:
            while waiting and in_flight < concurrency:
                engine.submit(waiting.pop())
                in_flight += 1
            output = engine.step()
            if output.failures:
                raise RuntimeError(f"{label}: {output.failures}")
            for token in output.tokens:
                answers[token.request_id].append(token.token_id)
                if token.finish_reason is not None:
                    in_flight -= 1
                    progress.advance(task)
    return answers


def mixed_lengths(requests: Iterable[EngineRequest]) -> list[EngineRequest]:
    """The same requests, long and short ones side by side."""
    ordered = sorted(requests, key=lambda request: len(request.prompt_token_ids))
    half = len(ordered) // 2
    mixed = [
        request for pair in zip(ordered[:half], reversed(ordered[half:]), strict=False) for request in pair
    ]
    return mixed + [request for request in ordered if request not in mixed]
