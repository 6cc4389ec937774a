from __future__ import annotations

import dataclasses

import pytest

from engine.api import FinishReason
from engine.stopping import finish_reason
from tests.engine.digest_model import params

STOP, LENGTH = FinishReason.STOP, FinishReason.LENGTH
EOS = frozenset({1, 2})


@pytest.mark.parametrize(
    ("token", "index", "num_tokens", "changes", "expected"),
    [
        (9, 0, 5, {}, None),
        (1, 0, 5, {}, STOP),
        (2, 3, 5, {}, STOP),
        (1, 0, 5, {"ignore_eos": True}, None),
        (7, 0, 5, {"ignore_eos": True, "stop_token_ids": frozenset({7})}, STOP),
        (1, 1, 5, {"min_tokens": 2}, None),
        (1, 2, 5, {"min_tokens": 2}, STOP),
        (7, 1, 5, {"min_tokens": 2, "stop_token_ids": frozenset({7})}, None),
        (9, 7, 50, {}, LENGTH),
        (9, 6, 50, {}, None),
        (1, 7, 50, {}, STOP),
        (9, 0, 99, {}, None),
        (9, 0, 100, {}, LENGTH),
        (1, 0, 100, {}, STOP),
    ],
)
def test_finish_reason(
    token: int, index: int, num_tokens: int, changes: dict[str, object], expected: FinishReason | None
) -> None:
    sampling = dataclasses.replace(params(8, ignore_eos=False), **changes)  # type: ignore[arg-type]
    assert finish_reason(sampling, token, index, num_tokens, EOS, max_model_len=100) is expected
