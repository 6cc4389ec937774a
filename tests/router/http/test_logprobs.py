"""Log probabilities in every form, aligned with the text whatever cuts it."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from router.choice_events import INLINE_POSITIONS
from router.generation import TokenLogprobs
from router.http.logprobs import LogprobsWriter
from tests.router.doors import MODEL, Doors
from tests.support.http_calls import post, post_stream
from tests.support.scripted_dispatcher import Script, logprobs_at, says
from tests.support.tiny_tokenizer import IM_END

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"


def text(**values: Any) -> dict[str, Any]:
    return {"model": MODEL, "prompt": "hi", **values}


def chat(**values: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], **values}


async def test_completion(doors: Doors) -> None:
    doors.dispatcher.script = Script(says("abc"))
    logprobs = (await post(doors.client, TEXT, text(logprobs=2)))["choices"][0]["logprobs"]
    assert logprobs["tokens"] == ["a", "b", "c", "<|im_end|>"]
    assert logprobs["text_offset"] == [0, 1, 2, 3]
    positions = [logprobs_at(token, 2) for token in (97, 98, 99, IM_END)]
    assert logprobs["token_logprobs"] == [position.logprob for position in positions]
    # The two likeliest, and the token itself where it is none of them.
    assert logprobs["top_logprobs"][0] == {"b": -0.25, "c": -0.375, "a": positions[0].logprob}


async def test_none_but_the_tokens_own(doors: Doors) -> None:
    doors.dispatcher.script = Script(says("a", end=None))
    logprobs = (await post(doors.client, TEXT, text(logprobs=0)))["choices"][0]["logprobs"]
    assert logprobs["top_logprobs"] == [{"a": logprobs["token_logprobs"][0]}]
    content = (await post(doors.client, CHAT, chat(logprobs=True)))["choices"][0]["logprobs"]["content"]
    assert [entry["top_logprobs"] for entry in content] == [[]]


async def test_chat(doors: Doors) -> None:
    doors.dispatcher.script = Script(says("aé"))
    body = await post(doors.client, CHAT, chat(logprobs=True, top_logprobs=2))
    logprobs = body["choices"][0]["logprobs"]
    assert logprobs["refusal"] is None
    content = logprobs["content"]
    assert [entry["token"] for entry in content] == ["a", "\\xc3", "\\xa9", "<|im_end|>"]
    assert b"".join(bytes(entry["bytes"]) for entry in content[:-1]).decode() == "aé"
    assert content[0]["top_logprobs"] == [
        {"token": "b", "logprob": -0.25, "bytes": [98]},
        {"token": "c", "logprob": -0.375, "bytes": [99]},
    ]
    assert doors.dispatcher.generations[0].request.sampling.logprobs == 2


async def test_parts_of_characters_have_names_of_their_own(doors: Doors) -> None:
    doors.dispatcher.script = Script(says("é", end=None))
    logprobs = (await post(doors.client, TEXT, text(logprobs=1)))["choices"][0]["logprobs"]
    assert logprobs["tokens"] == ["bytes:\\xc3", "bytes:\\xa9"]
    assert logprobs["text_offset"] == [0, 0]


async def test_ids_as_names(doors: Doors) -> None:
    doors.dispatcher.script = Script(says("a", end=None))
    asked = text(logprobs=1, return_tokens_as_token_ids=True)
    logprobs = (await post(doors.client, TEXT, asked))["choices"][0]["logprobs"]
    assert logprobs["tokens"] == ["token_id:97"]
    assert set(logprobs["top_logprobs"][0]) == {"token_id:98", "token_id:97"}


async def test_what_can_never_be_drawn_is_still_json(doors: Doors, monkeypatch: pytest.MonkeyPatch) -> None:
    never = TokenLogprobs(float("-inf"), 3, ((98, float("-inf")),))
    monkeypatch.setattr("tests.support.scripted_dispatcher.logprobs_at", lambda *_: never)
    doors.dispatcher.script = Script(says("a", end=None))
    logprobs = (await post(doors.client, TEXT, text(logprobs=1)))["choices"][0]["logprobs"]
    assert logprobs["token_logprobs"] == [-9999.0]
    assert logprobs["top_logprobs"] == [{"b": -9999.0, "a": -9999.0}]


@pytest.mark.parametrize("step", [1, 2, 5, 100])
@pytest.mark.parametrize("include", [False, True])
async def test_tokens_behind_a_stop_string_are_not_reported(doors: Doors, step: int, include: bool) -> None:
    doors.dispatcher.script = Script(says("one</b> two", step=step), hang=step < 100)
    asked = text(logprobs=0, stop="</b>", include_stop_str_in_output=include)
    body = await post(doors.client, TEXT, asked)
    (choice,) = body["choices"]
    assert choice["text"] == ("one</b>" if include else "one")
    assert "".join(choice["logprobs"]["tokens"]) == choice["text"]
    assert body["usage"]["completion_tokens"] == 7


@pytest.mark.parametrize("step", [1, 3, 100])
@pytest.mark.parametrize("path", [CHAT, TEXT])
async def test_text_that_is_held_back_keeps_its_logprobs(doors: Doors, step: int, path: str) -> None:
    """Each chunk's tokens begin in the text that has come by then; together they are the whole answer's."""
    script = Script(says("<b> é </c> </b> x", step=step))
    doors.dispatcher.script = script
    asked = text(logprobs=1, stop="</b>") if path == TEXT else chat(logprobs=True, stop="</b>")
    whole = (await post(doors.client, path, asked))["choices"][0]
    seen, offsets = "", []
    reported: list[Any] = []
    for chunk in await post_stream(doors.client, path, asked):
        (choice,) = chunk["choices"]
        seen += choice["text"] if path == TEXT else choice["delta"].get("content", "")
        if choice["logprobs"] is None:
            continue
        if path == TEXT:
            reported.extend(choice["logprobs"]["tokens"])
            offsets.extend(choice["logprobs"]["text_offset"])
            assert all(offset < len(seen) for offset in offsets)
        else:
            reported.extend(choice["logprobs"]["content"])
    assert seen == "<b> é </c> "
    assert reported == (whole["logprobs"]["tokens"] if path == TEXT else whole["logprobs"]["content"])
    assert len(reported) == len(seen.encode())


async def test_echo_begins_with_the_prompts(doors: Doors) -> None:
    doors.dispatcher.script = Script(says("xy", end=None))
    asked = text(prompt=["abc", "d"], echo=True, logprobs=1, max_tokens=2)
    first, second = (choice["logprobs"] for choice in (await post(doors.client, TEXT, asked))["choices"])
    assert first["tokens"] == ["a", "b", "c", "x", "y"]
    assert first["text_offset"] == [0, 1, 2, 3, 4]
    assert first["token_logprobs"][0] is first["top_logprobs"][0] is None
    assert first["token_logprobs"][1:] == [logprobs_at(token, 1).logprob for token in b"bcxy"]
    assert second["tokens"] == ["d", "x", "y"]
    assert second["token_logprobs"][0] is None
    assert doors.dispatcher.generations[0].request.sampling.prompt_logprobs == 1


async def test_offsets_of_an_echo_with_special_tokens(doors: Doors) -> None:
    doors.dispatcher.script = Script(says("x", end=None))
    asked = text(prompt=[256, 97, 98], echo=True, logprobs=0)
    choice = (await post(doors.client, TEXT, asked))["choices"][0]
    assert choice["text"] == "abx"
    assert choice["logprobs"]["tokens"] == ["<|im_start|>", "a", "b", "x"]
    assert choice["logprobs"]["text_offset"] == [0, 0, 1, 2]
    choice = (await post(doors.client, TEXT, {**asked, "prompt": "<|im_start|>ab"}))["choices"][0]
    assert choice["logprobs"]["text_offset"] == [0, 12, 13, 14]


@pytest.mark.parametrize("prompt", ["abc", [97, 98, 99], [[97, 98, 99]]])
async def test_scoring_a_prompt(doors: Doors, prompt: Any) -> None:
    doors.dispatcher.script = Script(says("x"), cached_tokens=2)
    body = await post(doors.client, TEXT, text(prompt=prompt, echo=True, logprobs=1, max_tokens=0))
    (choice,) = body["choices"]
    assert choice["text"] == "abc"
    assert choice["logprobs"]["tokens"] == ["a", "b", "c"]
    assert choice["finish_reason"] == "length"
    assert body["usage"]["completion_tokens"] == 0
    assert body["usage"]["total_tokens"] == 3
    assert body["usage"]["prompt_tokens_details"]["cached_tokens"] == 2


async def test_prompt_logprobs(doors: Doors) -> None:
    doors.dispatcher.script = Script(says("x"))
    (choice,) = (await post(doors.client, TEXT, text(prompt=[97, 98], prompt_logprobs=1)))["choices"]
    assert choice["prompt_logprobs"] == [
        None,
        {
            "98": {"logprob": logprobs_at(98, 1).logprob, "rank": 3, "decoded_token": "b"},
            "99": {"logprob": -0.25, "rank": 1, "decoded_token": "c"},
        },
    ]
    body = await post(doors.client, CHAT, chat(prompt_logprobs=0, max_tokens=0))
    assert len(body["prompt_logprobs"]) == body["usage"]["prompt_tokens"]
    assert body["choices"][0]["message"]["content"] == ""
    assert all(len(entry) == 1 for entry in body["prompt_logprobs"][1:])


async def test_an_echo_may_ask_for_fewer_than_the_prompts(doors: Doors) -> None:
    asked = text(prompt=[97, 98], echo=True, logprobs=1, prompt_logprobs=3)
    (choice,) = (await post(doors.client, TEXT, asked))["choices"]
    assert len(choice["logprobs"]["top_logprobs"][1]) == 2
    assert len(choice["prompt_logprobs"][1]) == 4


LISTS = ("tokens", "token_logprobs", "top_logprobs", "text_offset")


@pytest.mark.parametrize("said", ["xy", "é", ""])
@pytest.mark.parametrize(
    "values",
    [
        {"echo": True, "logprobs": 1},
        {"echo": True, "logprobs": 1, "prompt_logprobs": 2, "return_token_ids": True},
        {"echo": True, "logprobs": 0, "max_tokens": 0},
        {"prompt_logprobs": 1},
        {"prompt_logprobs": 1, "max_tokens": 0},
        {"prompt_logprobs": 0, "logprobs": 1, "n": 2},
        {"echo": True, "logprobs": 1, "prompt": [256, 256]},
    ],
)
async def test_a_stream_tells_of_the_prompt_first(doors: Doors, values: dict[str, Any], said: str) -> None:
    doors.dispatcher.script = Script(says(said))
    asked = text(**{"prompt": ["abc", "d"], **values})
    whole = (await post(doors.client, TEXT, asked))["choices"]
    chunks = await post_stream(doors.client, TEXT, {**asked, "stream": True})
    for expected in whole:
        parts = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == expected["index"]]
        assert "".join(part["text"] for part in parts) == expected["text"]
        assert parts[0].get("prompt_logprobs") == expected.get("prompt_logprobs")
        assert not any("prompt_logprobs" in part for part in parts[1:])
        told = [part["logprobs"] for part in parts if part["logprobs"]]
        if expected["logprobs"] is None:
            assert not told
        else:
            joined = {name: [entry for part in told for entry in part[name]] for name in LISTS}
            assert joined == expected["logprobs"]


@pytest.mark.parametrize("values", [{}, {"n": 3}, {"max_tokens": 0}, {"logprobs": True}])
async def test_a_streamed_chat_tells_of_the_prompt_once(doors: Doors, values: dict[str, Any]) -> None:
    doors.dispatcher.script = Script(says("é"))
    asked = chat(prompt_logprobs=1, **values)
    expected = (await post(doors.client, CHAT, asked))["prompt_logprobs"]
    chunks = await post_stream(doors.client, CHAT, {**asked, "stream": True})
    assert [chunk.get("prompt_logprobs") for chunk in chunks] == [expected, *[None] * (len(chunks) - 1)]


async def test_many_positions_are_streamed_from_beside_the_event_loop(
    doors: Doors, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[threading.Thread] = []

    def watched(self: LogprobsWriter, *_: Any) -> list[Any]:
        threads.append(threading.current_thread())
        return []

    doors.dispatcher.script = Script(says("x"))
    monkeypatch.setattr(LogprobsWriter, "prompt", watched)
    for length in (INLINE_POSITIONS + 1, INLINE_POSITIONS + 2):
        asked = text(prompt=[[97] * length], prompt_logprobs=0, stream=True)
        await post_stream(doors.client, TEXT, asked)
    assert [thread is threading.main_thread() for thread in threads] == [True, False]


async def test_many_positions_are_written_beside_the_event_loop(
    doors: Doors, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[threading.Thread] = []

    def watched(self: LogprobsWriter, *_: Any) -> list[Any]:
        threads.append(threading.current_thread())
        return []

    monkeypatch.setattr(LogprobsWriter, "prompt", watched)
    for length in (INLINE_POSITIONS + 1, INLINE_POSITIONS + 2):
        await post(doors.client, TEXT, text(prompt=[[97] * length], prompt_logprobs=0, max_tokens=0))
    assert [thread is threading.main_thread() for thread in threads] == [True, False]
