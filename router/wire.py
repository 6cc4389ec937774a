"""Dataclasses of the router, as messages of `kvrelay.v1`."""

from __future__ import annotations

from collections.abc import Sequence

from kvrelay.v1 import common_pb2, worker_pb2
from router.generation import GenerationRequest, ResolvedSampling


def sampling_message(sampling: ResolvedSampling) -> common_pb2.SamplingParams:
    """The sampling parameters, field by field."""
    return common_pb2.SamplingParams(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        seed=sampling.seed,
        choice=sampling.choice,
        max_tokens=sampling.max_tokens,
        min_tokens=sampling.min_tokens,
        stop_token_ids=sampling.stop_token_ids,
        ignore_eos=sampling.ignore_eos,
    )


def work_request(
    request: GenerationRequest, attempt: int, resumed_token_ids: Sequence[int]
) -> worker_pb2.WorkRequest:
    """One attempt at a request, going on after the tokens that the client has already."""
    return worker_pb2.WorkRequest(
        request_id=request.request_id,
        attempt=attempt,
        prompt_token_ids=request.prompt_token_ids,
        resumed_token_ids=resumed_token_ids,
        sampling=sampling_message(request.sampling),
        cache_salt=request.cache_salt,
        deadline_unix_ms=0 if request.deadline is None else max(1, round(request.deadline * 1000)),
        trace=request.trace,
    )
