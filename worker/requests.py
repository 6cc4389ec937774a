"""From the wire's requests to the engine's, and deadlines from the wall clock to the event loop's."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable

from engine.api import (
    EngineRequest,
    GrammarKind,
    GrammarSpec,
    SamplingParams,
    TokenLogprobs,
)
from engine.speculation.config import RequestSpeculation
from kvrelay.v1 import common_pb2, worker_pb2

_serial = itertools.count()


def sampling_params(message: common_pb2.SamplingParams) -> SamplingParams:
    """The engine's form of the wire's sampling parameters."""
    return SamplingParams(
        temperature=message.temperature,
        top_p=message.top_p,
        top_k=message.top_k,
        seed=message.seed,
        choice=message.choice,
        max_tokens=message.max_tokens,
        min_tokens=message.min_tokens,
        stop_token_ids=frozenset(message.stop_token_ids),
        ignore_eos=message.ignore_eos,
        min_p=message.min_p,
        typical_p=message.typical_p,
        presence_penalty=message.presence_penalty,
        frequency_penalty=message.frequency_penalty,
        repetition_penalty=message.repetition_penalty,
        logit_bias=tuple(message.logit_bias.items()),
        bad_words=tuple(tuple(sequence.ids) for sequence in message.bad_words),
        allowed_token_ids=frozenset(message.allowed_token_ids),
        logprobs=message.logprobs if message.HasField("logprobs") else None,
        prompt_logprobs=message.prompt_logprobs if message.HasField("prompt_logprobs") else None,
        grammar=_grammar_spec(message.grammar),
        own_seed=message.own_seed,
    )


def _grammar_spec(message: common_pb2.Grammar) -> GrammarSpec | None:
    kind = message.WhichOneof("kind")
    return None if kind is None else GrammarSpec(GrammarKind(kind), getattr(message, kind))


def logprobs_message(logprobs: TokenLogprobs) -> common_pb2.TokenLogprobs:
    """One position's log probabilities on the wire."""
    return common_pb2.TokenLogprobs(
        logprob=logprobs.logprob,
        rank=logprobs.rank,
        top_token_ids=[token_id for token_id, _ in logprobs.top],
        top_logprobs=[logprob for _, logprob in logprobs.top],
    )


def token_logprobs(message: common_pb2.TokenLogprobs) -> TokenLogprobs:
    """The engine's form of one position's log probabilities."""
    return TokenLogprobs(
        logprob=message.logprob,
        rank=message.rank,
        top=tuple(zip(message.top_token_ids, message.top_logprobs, strict=True)),
    )


def engine_request(message: worker_pb2.WorkRequest) -> EngineRequest:
    """The engine's form of one request.

    Its id is new at each call, for the same attempt too: what the engine still says of a sequence that has
    been ended must never be taken for another's.
    """
    return EngineRequest(
        request_id=f"{message.request_id}/{message.attempt}/{next(_serial)}",
        prompt_token_ids=tuple(message.prompt_token_ids),
        resumed_token_ids=tuple(message.resumed_token_ids),
        sampling=sampling_params(message.sampling),
        cache_salt=message.cache_salt,
        priority=message.priority,
        speculation=_request_speculation(message),
    )


def _request_speculation(message: worker_pb2.WorkRequest) -> RequestSpeculation | None:
    if not message.HasField("speculation"):
        return None
    asked = message.speculation
    has_depth = asked.HasField("num_speculative_tokens")
    return RequestSpeculation(asked.method, asked.num_speculative_tokens if has_depth else None)


def at_deadline(deadline_unix_ms: int, action: Callable[[], None]) -> asyncio.TimerHandle | None:
    """Runs `action` in the event loop at the deadline; None for a request that has none (0)."""
    if not deadline_unix_ms:
        return None
    delay_s = max(0.0, deadline_unix_ms / 1000 - time.time())
    return asyncio.get_running_loop().call_later(delay_s, action)
