"""Workers without an engine: real gRPC servers that answer at once, and fail as they are told to.

They stand at the network boundary, for tests of the router and for measuring its own overhead. The answer to
a prompt is `answer_token(prompt, index)`, whatever worker gives it and however often it starts anew.
"""

from tests.support.fake_workers.decode import FakeDecodeWorker
from tests.support.fake_workers.prefill import FakePrefillWorker
from tests.support.fake_workers.process import FakeWorker
from tests.support.fake_workers.scripts import (
    VOCABULARY,
    DecodeScript,
    PrefillScript,
    answer_logprobs,
    answer_token,
    answer_tokens,
)

__all__ = [
    "VOCABULARY",
    "DecodeScript",
    "FakeDecodeWorker",
    "FakePrefillWorker",
    "FakeWorker",
    "PrefillScript",
    "answer_logprobs",
    "answer_token",
    "answer_tokens",
]
