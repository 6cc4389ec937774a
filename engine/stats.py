"""What an engine tells of itself."""

from __future__ import annotations

from engine.api import EngineStats
from engine.kv.block_pool import BlockPool
from engine.kv.swap import SwapSpace
from engine.scheduler import Scheduler
from engine.step import StepRecorder


def engine_stats(pool: BlockPool, scheduler: Scheduler, totals: StepRecorder, swap: SwapSpace) -> EngineStats:
    """Current gauges and totals."""
    queued = sum(s.num_tokens - (s.swapped.num_tokens if s.swapped else 0) for s in scheduler.waiting)
    queued += sum(s.num_uncomputed for s in scheduler.running if s.num_uncomputed > 1)
    return EngineStats(
        running=len(scheduler.running),
        waiting=len(scheduler.waiting),
        queued_prefill_tokens=queued,
        blocks_total=pool.total,
        blocks_free=pool.num_free,
        blocks_cached=pool.num_cached,
        blocks_pinned=pool.num_pinned,
        blocks_quarantined=pool.num_quarantined,
        prompt_tokens_total=totals.prompt_tokens,
        cached_tokens_total=totals.cached_tokens,
        generated_tokens_total=totals.generated_tokens,
        preemptions_total=scheduler.recomputes + scheduler.swaps,
        swaps_total=scheduler.swaps,
        swap_blocks_total=swap.total,
        swap_blocks_used=swap.used,
        swapped_out_blocks_total=swap.blocks_out_total,
        swapped_in_blocks_total=swap.blocks_in_total,
    )
