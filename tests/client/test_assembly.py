from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from kvrelay import Choice, Chunk, FinishReason, ServerError, Span, Timeline, Usage
from kvrelay._assembly import Assembly
from kvrelay.v1 import common_pb2
from tests.client.scripted_server import last, piece


def test_interleaved_choices_are_put_together() -> None:
    assembly = Assembly()
    messages = [
        piece("B", choice=1),
        piece("A", choice=0),
        piece("b", choice=1, finish_reason=common_pb2.FINISH_REASON_LENGTH),
        last("a", choice=0),
    ]
    chunks = [assembly.add(message) for message in messages]
    assert chunks[2] == Chunk(1, "b", (98,), FinishReason.LENGTH)
    assert chunks[1] == Chunk(0, "A", (65,), None)
    generation = assembly.finish()
    assert generation.choices[0].text == generation.text == "Aa"
    assert generation.choices[1] == Choice(1, "Bb", (66, 98), FinishReason.LENGTH, None)
    assert generation.token_ids == (65, 97)
    assert generation.finish_reason is FinishReason.STOP
    assert generation.usage == Usage(3, 5, 2)
    assert generation.request_id == "request-1"
    assert generation.timeline is not None
    assert generation.timeline.ttft_s == 0.25


def test_every_field_of_the_timeline_is_taken_over() -> None:
    message = common_pb2.Timeline()
    fields: Any = message.DESCRIPTOR.fields
    for number, descriptor in enumerate(fields, 1):
        if descriptor.name == "spans":
            message.spans.add(
                name="transfer", start_unix_ns=1, end_unix_ns=2, num_tokens=3, num_bytes=4, pid=5
            )
        else:
            kind = type(getattr(message, descriptor.name))
            setattr(message, descriptor.name, kind(number))
    assembly = Assembly()
    final = last()
    final.timeline.CopyFrom(message)
    assembly.add(final)
    timeline = assembly.finish().timeline
    assert timeline is not None
    assert [field.name for field in dataclasses.fields(Timeline)] == [field.name for field in fields]
    for field in dataclasses.fields(Timeline):
        if field.name != "spans":
            assert (
                getattr(timeline, field.name)
                == getattr(message, field.name)
                != type(getattr(timeline, field.name))()
            )
    assert timeline.spans == (Span("transfer", 1, 2, 3, 4, 5),)


def test_every_finish_reason_has_a_name() -> None:
    for value in common_pb2.FinishReason.values():
        assembly = Assembly()
        chunk = assembly.add(piece("", finish_reason=value))
        assert (chunk.finish_reason is None) == (value == common_pb2.FINISH_REASON_UNSPECIFIED)


def test_a_stream_that_ends_early_is_an_error() -> None:
    with pytest.raises(ServerError, match="without its last message"):
        Assembly().finish()
    assembly = Assembly()
    assembly.add(piece("a"))
    with pytest.raises(ServerError, match="without its last message"):
        assembly.finish()
    assembly.add(last(choice=1))
    with pytest.raises(ServerError, match="before the end of choice 0"):
        assembly.finish()


def test_text_after_the_end_is_an_error() -> None:
    assembly = Assembly()
    assembly.add(last("a"))
    with pytest.raises(ServerError, match="after its end"):
        assembly.add(piece("b"))
