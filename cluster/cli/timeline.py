"""Shows where the time of a request went."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cluster.sizes import format_size
from kvrelay import Generation, Timeline

_BAR_WIDTH = 32


def print_timeline(console: Console, generation: Generation) -> None:
    """The phases as bars, then counts and rates."""
    timeline = generation.timeline
    if timeline is None:
        console.print("[dim]no timeline came with the answer[/]")
        return
    phases = [
        ("queue", timeline.router_queue_s + timeline.prefill_queue_s, "router and prefill worker"),
        ("prefill", timeline.prefill_s, _prefill_note(timeline)),
        ("transfer", timeline.transfer_s, _transfer_note(timeline)),
        ("decode", timeline.decode_queue_s + timeline.decode_s, _decode_note(timeline)),
    ]
    total = sum(seconds for _, seconds, _ in phases) or 1.0
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold")
    table.add_column(justify="right")
    table.add_column(no_wrap=True)
    table.add_column(style="dim")
    begun = 0.0
    for name, seconds, note in phases:
        table.add_row(name, f"{seconds * 1000:.1f} ms", _bar(begun / total, seconds / total), escape(note))
        begun += seconds
    console.print()
    console.print(table)
    console.print(counts_line(generation))


def counts_line(generation: Generation) -> str:
    """Tokens in, cached and out; time to the first; rate of the others."""
    usage, timeline = generation.usage, generation.timeline
    parts = [
        f"{usage.prompt_tokens} prompt tokens ({usage.cached_tokens} cached)",
        f"{usage.completion_tokens} tokens",
    ]
    if timeline is not None:
        parts.append(f"first after {timeline.ttft_s * 1000:.0f} ms")
        rate = tokens_per_second(generation)
        if rate is not None:
            parts.append(f"{rate:.1f} tokens/s")
        if timeline.attempts > 1:
            parts.append(f"{timeline.attempts} attempts")
    return ", ".join(parts)


def tokens_per_second(generation: Generation) -> float | None:
    """Tokens after the first over the time they took; None where there is nothing to measure."""
    timeline = generation.timeline
    later = len(generation.token_ids) - 1
    if timeline is None or later < 1 or timeline.decode_s <= 0:
        return None
    return later / timeline.decode_s


def _prefill_note(timeline: Timeline) -> str:
    where = timeline.decode_worker if timeline.local_prefill else timeline.prefill_worker
    return f"on {where}: {timeline.placement_reason}"


def _transfer_note(timeline: Timeline) -> str:
    if timeline.local_prefill:
        return "none: prefilled where it is decoded"
    moved = format_size(timeline.transfer_bytes)
    busy = timeline.transfer_busy_s * 1000
    return f"{moved} by {timeline.transport}, {busy:.1f} ms of reads, overlapped with prefill"


def _decode_note(timeline: Timeline) -> str:
    note = f"on {timeline.decode_worker}"
    if timeline.tokens_per_pass is None:
        return note
    drafts = f"{timeline.accepted_tokens} of {timeline.drafted_tokens} drafts right"
    return f"{note}: {timeline.tokens_per_pass:.2f} tokens per pass, {drafts}"


def _bar(start: float, share: float) -> str:
    left = min(round(start * _BAR_WIDTH), _BAR_WIDTH - 1)
    width = max(1, round(share * _BAR_WIDTH)) if share > 0 else 0
    width = min(width, _BAR_WIDTH - left)
    return " " * left + "█" * width + " " * (_BAR_WIDTH - left - width)
