"""The openai package, as its users call it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from typing import Any, Literal

import openai
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel

from benchmarks.client_checks.checks import Checks, Target, expect

MESSAGES: list[Any] = [{"role": "user", "content": "Name three colours of the rainbow."}]
PROMPT = "The capital of France is"
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 16}
# Drawn, a model may take any number of tokens for white space between what it was told to write.
STRUCTURED: dict[str, Any] = {"temperature": 0, "max_tokens": 200}
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tells the weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 20}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


class Animal(BaseModel):
    """What structured output is parsed into."""

    kind: Literal["cat", "dog", "bird"]
    legs: Literal[2, 4]


def _text(chunks: Iterable[Any]) -> str:
    """Content of a stream of chat chunks."""
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


def chat(checks: Checks, client: OpenAI, model: str) -> None:
    """Plain and streamed chats."""
    with checks("models"):
        names = [found.id for found in client.models.list()]
        expect(model in names, names)
        expect(client.models.retrieve(model).id == model, names)
    answer = ""
    with checks("chat"):
        response = client.chat.completions.create(model=model, messages=MESSAGES, **GREEDY)
        answer = response.choices[0].message.content or ""
        expect(answer and response.choices[0].finish_reason in ("length", "stop"), response)
        usage = response.usage
        expect(usage and usage.total_tokens == usage.prompt_tokens + usage.completion_tokens, usage)
    with checks("chat stream equals chat, with usage"):
        options: Any = {"include_usage": True}
        chunks = list(
            client.chat.completions.create(
                model=model, messages=MESSAGES, stream=True, stream_options=options, **GREEDY
            )
        )
        expect(_text(chunks) == answer, _text(chunks))
        expect(chunks[-1].usage and chunks[-1].usage.completion_tokens > 0, chunks[-1])
    with checks("content parts"):
        parts: Any = [{"role": "user", "content": [{"type": "text", "text": MESSAGES[0]["content"]}]}]
        found = client.chat.completions.create(model=model, messages=parts, **GREEDY)
        expect(found.choices[0].message.content == answer, found)
    with checks("n and seed"):
        ask: dict[str, Any] = {"temperature": 1.0, "seed": 7, "max_tokens": 12, "n": 2}
        first, second = (
            client.chat.completions.create(model=model, messages=MESSAGES, **ask) for _ in range(2)
        )
        texts = [[choice.message.content for choice in response.choices] for response in (first, second)]
        expect(texts[0] == texts[1] and len(texts[0]) == 2 and texts[0][0] != texts[0][1], texts)
    with checks("stop"):
        word = answer.split()[-1]
        stopped = client.chat.completions.create(model=model, messages=MESSAGES, stop=[word], **GREEDY)
        content = stopped.choices[0].message.content or ""
        expect(stopped.choices[0].finish_reason == "stop" and answer.startswith(content), stopped)
        expect(word not in content, content)
    with checks("penalties and top_p"):
        client.chat.completions.create(
            model=model, messages=MESSAGES, max_tokens=8, top_p=0.9, presence_penalty=0.5,
            frequency_penalty=0.5, temperature=0.7,
        )  # fmt: skip
    with checks("chat logprobs"):
        response = client.chat.completions.create(
            model=model, messages=MESSAGES, logprobs=True, top_logprobs=3, **GREEDY
        )
        tokens = (response.choices[0].logprobs and response.choices[0].logprobs.content) or []
        expect(len(tokens) == (response.usage and response.usage.completion_tokens), tokens)
        expect("".join(token.token for token in tokens).startswith(answer), tokens)
        expect(all(len(token.top_logprobs) == 3 for token in tokens), tokens)
        expect(all(token.logprob == token.top_logprobs[0].logprob for token in tokens), tokens)
    with checks("32 concurrent chats"):
        texts_found = asyncio.run(_concurrently(str(client.base_url), model))
        expect(set(texts_found) == {answer}, texts_found)


async def _concurrently(url: str, model: str) -> list[str]:
    async with AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
        calls = [client.chat.completions.create(model=model, messages=MESSAGES, **GREEDY) for _ in range(32)]
        return [response.choices[0].message.content or "" for response in await asyncio.gather(*calls)]


def completions(checks: Checks, client: OpenAI, model: str) -> None:
    """The older form, which base models and evaluations use."""
    text = ""
    with checks("completion"):
        text = client.completions.create(model=model, prompt=PROMPT, **GREEDY).choices[0].text
        expect(text, text)
    with checks("completion stream"):
        stream = client.completions.create(model=model, prompt=PROMPT, stream=True, **GREEDY)
        joined = "".join(chunk.choices[0].text for chunk in stream if chunk.choices)
        expect(joined == text, joined)
    with checks("batched prompts"):
        batch = client.completions.create(model=model, prompt=[PROMPT, "One, two,"], **GREEDY)
        expect([choice.index for choice in batch.choices] == [0, 1], batch)
        expect(batch.choices[0].text == text, batch)
    with checks("completion echo and logprobs"):
        response = client.completions.create(
            model=model, prompt=PROMPT, echo=True, logprobs=2, max_tokens=4, temperature=0
        )
        choice = response.choices[0]
        expect(choice.text.startswith(PROMPT) and choice.logprobs is not None, choice)
        found: Any = choice.logprobs
        expect(found.token_logprobs[0] is None and "".join(found.tokens) == choice.text, found)
        expect(all(value <= 0 for value in found.token_logprobs[1:]), found)
    with checks("logit_bias"):
        found_text = client.completions.create(
            model=model, prompt=PROMPT, max_tokens=3, temperature=0, logit_bias={"33": 100}, logprobs=0
        )
        chosen: Any = found_text.choices[0].logprobs
        expect(len(set(chosen.tokens)) == 1, chosen)


def structured(checks: Checks, client: OpenAI, model: str) -> None:
    """Answers that follow a schema, and calls of tools."""
    with checks("response_format json_schema"):
        parsed = client.chat.completions.parse(
            model=model, messages=MESSAGES, response_format=Animal, **STRUCTURED
        )
        expect(isinstance(parsed.choices[0].message.parsed, Animal), parsed)
    with checks("response_format json_object"):
        response = client.chat.completions.create(
            model=model, messages=MESSAGES, response_format={"type": "json_object"}, **STRUCTURED
        )
        # A small model may not come to an end: what it has must then be the start of an object.
        content = (response.choices[0].message.content or "").lstrip()
        expect(content.startswith("{"), content)
        if response.choices[0].finish_reason == "stop":
            expect(isinstance(json.loads(content), dict), content)
    call: Any = None
    tools: Any = [WEATHER]
    for name, choice in (
        ("tool_choice required", "required"),
        ("tool_choice named", {"type": "function", "function": {"name": "weather"}}),
    ):
        with checks(name):
            tool_choice: Any = choice
            response = client.chat.completions.create(
                model=model, messages=MESSAGES, tools=tools, tool_choice=tool_choice, **STRUCTURED
            )
            call = next(iter(response.choices[0].message.tool_calls or []), None)
            expect(call is not None and call.function.name == "weather", response)
            expect(list(json.loads(call.function.arguments)) == ["city"], call)
    with checks("streamed tool call"):
        names: list[str] = []
        arguments: list[str] = []
        finish_reason = ""
        stream: Any = client.chat.completions.create(
            model=model, messages=MESSAGES, tools=tools, tool_choice="required", stream=True, **STRUCTURED
        )
        for choice in (choice for chunk in stream for choice in chunk.choices):
            finish_reason = choice.finish_reason or finish_reason
            for delta in choice.delta.tool_calls or []:
                if delta.function.name:
                    expect(delta.index == len(names), delta)
                    names.append(delta.function.name)
                    arguments.append("")
                arguments[delta.index] += delta.function.arguments or ""
        # It may call more than once, and the last call may be cut off.
        whole = arguments[:-1] if finish_reason == "length" else arguments
        expect(whole and {*names} == {"weather"}, (names, arguments))
        expect(all(list(json.loads(text)) == ["city"] for text in whole), (names, arguments))
    with checks("tool results"):
        messages = [
            *MESSAGES,
            {"role": "assistant", "content": None, "tool_calls": [call.model_dump()]},
            {"role": "tool", "tool_call_id": call.id, "content": "Sunny."},
        ]
        response = client.chat.completions.create(model=model, messages=messages, tools=tools, **GREEDY)
        expect(response.choices[0].finish_reason, response)


def errors(checks: Checks, client: OpenAI, model: str) -> None:
    """Mistakes come back as the exceptions that users catch."""
    with checks("bad parameter is BadRequestError"):
        try:
            client.chat.completions.create(model=model, messages=MESSAGES, temperature=-1)
        except openai.BadRequestError as error:
            expect("temperature" in str(error), error)
        else:
            raise AssertionError("accepted")
    with checks("unknown model is NotFoundError"):
        try:
            client.chat.completions.create(model="no-such-model", messages=MESSAGES)
        except openai.NotFoundError:
            pass
        else:
            raise AssertionError("accepted")


def main() -> None:
    """All checks."""
    checks, target = Checks(), Target.from_arguments()
    client = OpenAI(base_url=target.openai_url, api_key="none", max_retries=0)
    chat(checks, client, target.model)
    completions(checks, client, target.model)
    structured(checks, client, target.model)
    errors(checks, client, target.model)


if __name__ == "__main__":
    main()
