"""The one right answer to a prompt, and what a fake worker may be told to do on its way to it."""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import grpc

from kvrelay.v1 import common_pb2, decode_pb2

VOCABULARY = 1000


def answer_token(prompt: Sequence[int], index: int) -> int:
    """The token at `index` of the one right answer to a prompt."""
    return zlib.crc32(array("I", [*prompt, index]).tobytes()) % VOCABULARY


def answer_tokens(prompt: Sequence[int], count: int) -> list[int]:
    """The first `count` tokens of the one right answer."""
    return [answer_token(prompt, index) for index in range(count)]


def answer_logprobs(token_id: int) -> common_pb2.TokenLogprobs:
    """What a fake worker says of a token, wherever it stands. Exact in fp32."""
    return common_pb2.TokenLogprobs(
        logprob=-token_id / 8, rank=token_id + 1, top_token_ids=[token_id + 1], top_logprobs=[-0.5]
    )


@dataclass(frozen=True, slots=True)
class PrefillScript:
    """What a prefill worker does with one request.

    Attributes:
        refuse: status with which Start fails.
        die: the process goes when the request comes.
        start_hangs: Start never answers.
        cached_tokens: what Finished says.
        hold: the prompt is never computed: Finished does not come.
        revoke: the ticket is revoked as soon as it is followed.
    """

    refuse: grpc.StatusCode | None = None
    die: bool = False
    start_hangs: bool = False
    cached_tokens: int = 0
    hold: bool = False
    revoke: bool = False


@dataclass(frozen=True, slots=True)
class DecodeScript:
    """What a decode worker does with one request, after `after` tokens of this attempt.

    Attributes:
        after: tokens given before anything else below happens.
        die: the process goes.
        hang: the process stops: no message, no heartbeat, on any stream.
        drop_stream: the session breaks, the process lives.
        error: the request ends with this error.
        omit: this many tokens are left out, but never the last.
        repeat: each message repeats so many tokens of the one before.
        step_tokens: tokens of one message.
        step_s: seconds between messages.
        cached_tokens: of a local prefill.
        finish: how the answer ends after max_tokens.
    """

    after: int = 0
    die: bool = False
    hang: bool = False
    drop_stream: bool = False
    error: decode_pb2.WorkError | None = None
    omit: int = 0
    repeat: int = 0
    step_tokens: int = 1
    step_s: float = 0.0
    cached_tokens: int = 0
    finish: int = common_pb2.FINISH_REASON_LENGTH
