"""Dataclasses of the router, as messages of `kvrelay.v1`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kvrelay.v1 import common_pb2, worker_pb2
from router.generation import GenerationRequest, GrammarSpec, ResolvedSampling, Speculation, TokenLogprobs


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
        min_p=sampling.min_p,
        typical_p=sampling.typical_p,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        repetition_penalty=sampling.repetition_penalty,
        logit_bias=dict(sampling.logit_bias),
        bad_words=[common_pb2.TokenSequence(ids=ids) for ids in sampling.bad_words],
        allowed_token_ids=sampling.allowed_token_ids,
        logprobs=sampling.logprobs,
        prompt_logprobs=sampling.prompt_logprobs,
        grammar=_grammar_message(sampling.grammar),
        own_seed=sampling.own_seed,
    )


def _grammar_message(grammar: GrammarSpec | None) -> common_pb2.Grammar | None:
    return None if grammar is None else common_pb2.Grammar(**{grammar.kind: grammar.source})


def token_logprobs(message: common_pb2.TokenLogprobs) -> TokenLogprobs:
    """The router's form of one position's log probabilities."""
    return TokenLogprobs(
        logprob=message.logprob,
        rank=message.rank,
        top=tuple(zip(message.top_token_ids, message.top_logprobs, strict=True)),
    )


def work_request(
    request: GenerationRequest, attempt: int, resumed_token_ids: Sequence[int]
) -> worker_pb2.WorkRequest:
    """One attempt at a request, going on after the tokens that the client has already.

    Log probabilities of the prompt came with the first of these tokens: they are not asked for again, for
    they cost the whole prompt's computation.
    """
    sampling = request.sampling
    if resumed_token_ids:
        sampling = replace(sampling, prompt_logprobs=None)
    return worker_pb2.WorkRequest(
        request_id=request.request_id,
        attempt=attempt,
        prompt_token_ids=request.prompt_token_ids,
        resumed_token_ids=resumed_token_ids,
        sampling=sampling_message(sampling),
        cache_salt=request.cache_salt,
        deadline_unix_ms=0 if request.deadline is None else max(1, round(request.deadline * 1000)),
        trace=request.trace,
        priority=request.priority,
        speculation=_speculation_message(request.speculation),
    )


def _speculation_message(asked: Speculation | None) -> worker_pb2.Speculation | None:
    if asked is None:
        return None
    return worker_pb2.Speculation(method=asked.method, num_speculative_tokens=asked.num_speculative_tokens)
