from __future__ import annotations

from decode_worker.clock import RequestClock
from engine.api import DraftReport


def test_drafts_of_all_passes_are_summed() -> None:
    clock = RequestClock()
    for drafted, accepted in ((4, 2), (0, 0), (3, 3)):
        clock.verified(DraftReport("r", drafted, accepted))
    timeline = clock.timeline("decode-0", "", trace=False)
    assert (timeline.decode_passes, timeline.drafted_tokens, timeline.accepted_tokens) == (3, 7, 5)


def test_a_worker_that_does_not_speculate_counts_no_passes() -> None:
    timeline = RequestClock().timeline("decode-0", "prefill-0", trace=False)
    assert (timeline.decode_passes, timeline.drafted_tokens, timeline.accepted_tokens) == (0, 0, 0)
