"""What a user is shown of a request's way."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO

from rich.console import Console

from cluster.cli.timeline import print_timeline
from kvrelay import Choice, Generation, Timeline, Usage
from kvrelay._assembly import _timeline
from kvrelay.v1 import common_pb2


def shown(timeline: Timeline) -> str:
    out = StringIO()
    choice = Choice(0, "text", (1, 2, 3), "stop", timeline)
    usage = Usage(prompt_tokens=5, completion_tokens=3, cached_tokens=0, reasoning_tokens=0)
    print_timeline(Console(file=out, width=200), Generation("r", (choice,), usage))
    return out.getvalue()


def test_tokens_per_pass_and_drafts_of_a_worker_that_speculates() -> None:
    message = common_pb2.Timeline(
        decode_s=1.0, decode_worker="decode-0", decode_passes=40, drafted_tokens=120, accepted_tokens=66
    )
    timeline = _timeline(message)
    assert timeline.tokens_per_pass == 1 + 66 / 40
    assert "on decode-0: 2.65 tokens per pass, 66 of 120 drafts right" in shown(timeline)


def test_nothing_of_drafts_where_there_are_none() -> None:
    timeline = _timeline(common_pb2.Timeline(decode_s=1.0, decode_worker="decode-0"))
    assert timeline.tokens_per_pass is None
    assert "pass" not in shown(timeline)
    assert "tokens per pass" in shown(replace(timeline, decode_passes=2))
