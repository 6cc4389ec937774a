"""Tool calls and reasoning, as the `openai` package sees them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.router.doors import MODEL
from tests.router.http.structured_doors import MESSAGES, TOOLS, answering, grammar_of
from tests.router.templates import HERMES, LLAMA31, REASONING
from tests.support.grammar_walks import accepts
from tests.support.scripted_dispatcher import Script, says

CALLS = (
    'Let me see.\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Köln"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
)


async def test_calls(tmp_path: Path) -> None:
    async with answering(tmp_path, CALLS, HERMES) as (doors, client):
        answer = await client.chat.completions.create(model=MODEL, messages=MESSAGES, tools=TOOLS)
    [choice] = answer.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "Let me see."
    assert choice.message.tool_calls is not None
    called = [(call.function.name, call.function.arguments) for call in choice.message.tool_calls]
    assert called == [("get_weather", '{"city": "Köln"}'), ("now", "{}")]
    assert len({call.id for call in choice.message.tool_calls}) == 2
    assert grammar_of(doors) is None


@pytest.mark.parametrize("step", [1, 3, 1000])
async def test_calls_stream(tmp_path: Path, step: int) -> None:
    async with answering(tmp_path, "", HERMES) as (doors, client):
        doors.dispatcher.script = Script(says(CALLS, step=step))
        stream = await client.chat.completions.create(
            model=MODEL, messages=MESSAGES, tools=TOOLS, stream=True
        )
        content, calls, reasons = "", {}, []
        async for chunk in stream:
            [choice] = chunk.choices
            content += choice.delta.content or ""
            reasons.append(choice.finish_reason)
            for delta in choice.delta.tool_calls or ():
                if delta.id:
                    assert delta.index == len(calls), "the name comes once, before the arguments"
                    assert delta.type == "function"
                    calls[delta.index] = [delta.id, delta.function.name, ""]
                calls[delta.index][2] += delta.function.arguments or ""
    assert content == "Let me see."
    assert reasons[-1] == "tool_calls"
    assert set(reasons[:-1]) == {None}
    assert [call[1:] for call in calls.values()] == [["get_weather", '{"city": "Köln"}'], ["now", "{}"]]


async def test_the_stream_helper_puts_calls_together(tmp_path: Path) -> None:
    async with (
        answering(tmp_path, CALLS, HERMES) as (_, client),
        client.chat.completions.stream(model=MODEL, messages=MESSAGES, tools=TOOLS) as stream,
    ):
        async for _ in stream:
            pass
        answer = await stream.get_final_completion()
    calls = answer.choices[0].message.tool_calls
    assert calls is not None
    assert [call.function.name for call in calls] == ["get_weather", "now"]


async def test_an_answer_that_is_cut_off_is_no_finished_call(tmp_path: Path) -> None:
    async with answering(tmp_path, CALLS, HERMES) as (_, client):
        answer = await client.chat.completions.create(
            model=MODEL, messages=MESSAGES, tools=TOOLS, max_tokens=CALLS.index("Köln")
        )
    [choice] = answer.choices
    assert choice.finish_reason == "length"
    assert choice.message.tool_calls is not None
    assert choice.message.tool_calls[0].function.arguments == '{"city": "'


async def test_without_calls_the_answer_just_stops(tmp_path: Path) -> None:
    async with answering(tmp_path, "<tool_call> is a marker", HERMES) as (_, client):
        answer = await client.chat.completions.create(model=MODEL, messages=MESSAGES, tools=TOOLS)
        assert answer.choices[0].finish_reason == "stop"
        assert answer.choices[0].message.content == "<tool_call> is a marker"
        assert answer.choices[0].message.tool_calls is None


async def test_one_call_ends_the_answer_where_calls_are_not_parallel(tmp_path: Path) -> None:
    async with answering(tmp_path, CALLS, HERMES) as (doors, client):
        answer = await client.chat.completions.create(
            model=MODEL, messages=MESSAGES, tools=TOOLS, parallel_tool_calls=False
        )
        assert answer.choices[0].message.tool_calls is not None
        assert len(answer.choices[0].message.tool_calls) == 1
        assert answer.choices[0].finish_reason == "tool_calls"
        assert doors.dispatcher.states == ["finished"]
        assert answer.usage is not None
        assert answer.usage.completion_tokens == len(CALLS[: CALLS.index("</tool_call>") + 12].encode())


async def test_tool_choice_none_hides_the_tools(tmp_path: Path) -> None:
    async with answering(tmp_path, CALLS, HERMES) as (doors, client):
        answer = await client.chat.completions.create(
            model=MODEL, messages=MESSAGES, tools=TOOLS, tool_choice="none"
        )
        assert answer.choices[0].message.content == CALLS
        assert answer.choices[0].finish_reason == "stop"
        assert b"get_weather" not in bytes(
            token for token in doors.dispatcher.generations[0].request.prompt_token_ids if token < 256
        )


@pytest.mark.parametrize(
    ("choice", "good", "bad"),
    [
        (
            "required",
            [
                '<tool_call>\n{"name": "get_weather", "arguments": {"city":"Köln","days": 3}}\n</tool_call>',
                '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>\n'
                '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>',
            ],
            [
                "",
                "hello",
                '<tool_call>\n{"name": "get_weather", "arguments": {}}\n</tool_call>',
                '<tool_call>\n{"name": "get_weather", "arguments": {"city":"Köln","days": 0}}\n</tool_call>',
                '<tool_call>\n{"name": "now", "arguments": {"a": 1}}\n</tool_call>',
                '<tool_call>\n{"name": "later", "arguments": {}}\n</tool_call>',
            ],
        ),
        (
            {"type": "function", "function": {"name": "now"}},
            ['<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'],
            [
                '<tool_call>\n{"name": "get_weather", "arguments": {"city":"Köln"}}\n</tool_call>',
                '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>' * 2,
            ],
        ),
    ],
    ids=["required", "named"],
)
async def test_a_grammar_holds_required_calls(
    tmp_path: Path, choice: Any, good: list[str], bad: list[str]
) -> None:
    async with answering(tmp_path, CALLS, HERMES) as (doors, client):
        await client.chat.completions.create(model=MODEL, messages=MESSAGES, tools=TOOLS, tool_choice=choice)
        grammar = grammar_of(doors)
    assert grammar is not None
    assert [text for text in good if not accepts(grammar, text)] == []
    assert [text for text in bad if accepts(grammar, text)] == []


async def test_llama_calls(tmp_path: Path) -> None:
    text = '{"name": "get_weather", "parameters": {"city": "Köln"}}'
    async with answering(tmp_path, text, LLAMA31) as (doors, client):
        answer = await client.chat.completions.create(
            model=MODEL, messages=MESSAGES, tools=TOOLS, tool_choice="required"
        )
        grammar = grammar_of(doors)
    assert grammar is not None
    assert accepts(grammar, text)
    assert not accepts(grammar, f"{text};{text}")
    [choice] = answer.choices
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
    assert choice.message.tool_calls is not None
    assert choice.message.tool_calls[0].function.arguments == '{"city": "Köln"}'


async def test_a_whole_round_of_calls_reaches_the_template(tmp_path: Path) -> None:
    async with answering(tmp_path, CALLS, HERMES) as (doors, client):
        answer = await client.chat.completions.create(model=MODEL, messages=MESSAGES, tools=TOOLS)
        message = answer.choices[0].message
        assert message.tool_calls is not None
        history = [
            *MESSAGES,
            message.model_dump(),
            *(
                {"role": "tool", "tool_call_id": call.id, "content": f"result {index}"}
                for index, call in enumerate(message.tool_calls)
            ),
        ]
        await client.chat.completions.create(model=MODEL, messages=history, tools=TOOLS)
        prompt = bytes(
            token for token in doors.dispatcher.generations[-1].request.prompt_token_ids if token < 256
        ).decode()
    assert '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Köln"}}\n</tool_call>' in prompt
    assert "<tool_response>\nresult 1\n</tool_response>" in prompt


THOUGHT = "<think>\nHm, 1 < 2.\n</think>\n\nYes."


@pytest.mark.parametrize("step", [1, 7, 1000])
async def test_reasoning(tmp_path: Path, step: int) -> None:
    async with answering(tmp_path, "", REASONING) as (doors, client):
        doors.dispatcher.script = Script(says(THOUGHT, step=step))
        answer = await client.chat.completions.create(model=MODEL, messages=MESSAGES)
        message = answer.choices[0].message.model_dump()
        assert (message["content"], message["reasoning_content"]) == ("Yes.", "Hm, 1 < 2.")
        assert message["reasoning"] == message["reasoning_content"]
        assert answer.usage is not None
        assert answer.usage.completion_tokens_details is not None
        counted = answer.usage.completion_tokens_details.reasoning_tokens
        assert counted == THOUGHT.index("</think>") + len("</think>")
        stream = await client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True)
        content = reasoning = ""
        async for chunk in stream:
            delta = chunk.choices[0].delta.model_dump()
            content += delta["content"] or ""
            reasoning += delta.get("reasoning_content") or ""
        assert (content, reasoning) == ("Yes.", "Hm, 1 < 2.")


async def test_reasoning_that_the_prompt_began_or_forbade(tmp_path: Path) -> None:
    async with answering(tmp_path, "Hm.\n</think>\nYes.", REASONING) as (doors, client):
        opened = {"chat_template_kwargs": {"open_thinking": True}}
        answer = await client.chat.completions.create(model=MODEL, messages=MESSAGES, extra_body=opened)
        message = answer.choices[0].message.model_dump()
        assert (message["content"], message["reasoning_content"]) == ("Yes.", "Hm.")
        hidden = {**opened, "include_reasoning": False}
        answer = await client.chat.completions.create(model=MODEL, messages=MESSAGES, extra_body=hidden)
        assert answer.choices[0].message.content == "Yes."
        assert "reasoning_content" not in answer.choices[0].message.model_dump()
        doors.dispatcher.script = Script(says("Yes."))
        without = {"chat_template_kwargs": {"enable_thinking": False}}
        answer = await client.chat.completions.create(model=MODEL, messages=MESSAGES, extra_body=without)
        assert answer.choices[0].message.content == "Yes."
        prompt = bytes(
            token for token in doors.dispatcher.generations[-1].request.prompt_token_ids if token < 256
        )
        assert prompt.endswith(b"<think>\n\n</think>\n\n")


async def test_calls_after_reasoning(tmp_path: Path) -> None:
    text = f"<think>A <tool_call> maybe?</think>\n{CALLS}"
    async with answering(tmp_path, text, HERMES + REASONING) as (doors, client):
        answer = await client.chat.completions.create(
            model=MODEL, messages=MESSAGES, tools=TOOLS, tool_choice="required"
        )
        grammar = grammar_of(doors)
    message = answer.choices[0].message
    assert message.model_dump()["reasoning_content"] == "A <tool_call> maybe?"
    assert message.content == "Let me see."
    assert message.tool_calls is not None
    assert len(message.tool_calls) == 2
    assert grammar is not None
    assert accepts(grammar, text.replace("Let me see.\n", ""))
