"""Requests for tests of workers."""

from __future__ import annotations

import random
import time
from typing import Any

from kvrelay.v1 import common_pb2, worker_pb2

PREFILL_CHUNK = 32


def prompt(num_tokens: int, seed: int = 0) -> list[int]:
    """Random bytes as token ids of the tiny models."""
    return random.Random(seed).choices(range(256), k=num_tokens)


def work_request(
    request_id: str,
    token_ids: list[int],
    *,
    attempt: int = 1,
    max_tokens: int = 12,
    resumed: list[int] | None = None,
    deadline_s: float = 0.0,
    trace: bool = False,
    **sampling: Any,
) -> worker_pb2.WorkRequest:
    """A greedy request that no EOS ends, unless told otherwise. `deadline_s` is from now; 0 is none."""
    values = {
        "temperature": 0.0,
        "top_p": 1.0,
        "typical_p": 1.0,
        "repetition_penalty": 1.0,
        "seed": 1,
        "max_tokens": max_tokens,
        "ignore_eos": True,
    }
    return worker_pb2.WorkRequest(
        request_id=request_id,
        attempt=attempt,
        prompt_token_ids=token_ids,
        resumed_token_ids=resumed or [],
        sampling=common_pb2.SamplingParams(**{**values, **sampling}),
        deadline_unix_ms=int((time.time() + deadline_s) * 1000) if deadline_s else 0,
        trace=trace,
    )
