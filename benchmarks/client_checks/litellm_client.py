"""litellm's OpenAI-compatible provider."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import litellm

from benchmarks.client_checks.checks import Checks, Target, expect

MESSAGES = [{"role": "user", "content": "Name three colours of the rainbow."}]
SCHEMA = {
    "type": "object", "properties": {"legs": {"type": "integer", "enum": [2, 4]}}, "required": ["legs"],
    "additionalProperties": False,
}  # fmt: skip


def main() -> None:
    """All checks."""
    checks, target = Checks(), Target.from_arguments()
    litellm.num_retries = 0
    common: dict[str, Any] = {
        "model": f"openai/{target.model}", "api_base": target.openai_url, "api_key": "none", "temperature": 0,
    }  # fmt: skip
    short = {**common, "max_tokens": 16, "messages": MESSAGES}
    answer = ""
    with checks("completion"):
        response: Any = litellm.completion(**short)
        answer = response.choices[0].message.content
        expect(answer and response.usage.completion_tokens > 0, response)
    with checks("stream"):
        chunks: Any = litellm.completion(**short, stream=True, stream_options={"include_usage": True})
        joined = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        expect(joined == answer, joined)
    with checks("acompletion, 8 at once"):

        async def together() -> list[str]:
            found: Any = await asyncio.gather(*(litellm.acompletion(**short) for _ in range(8)))
            return [response.choices[0].message.content for response in found]

        expect(set(asyncio.run(together())) == {answer}, "other answers")
    with checks("text_completion"):
        base = {**common, "model": f"text-completion-openai/{target.model}", "max_tokens": 8}
        response = litellm.text_completion(prompt="One, two,", **base)
        expect(response.choices[0].text, response)
    with checks("logprobs"):
        response = litellm.completion(**short, logprobs=True, top_logprobs=2)
        expect(response.choices[0].logprobs, response)
    with checks("response_format json_schema"):
        wanted = {"type": "json_schema", "json_schema": {"name": "animal", "strict": True, "schema": SCHEMA}}
        response = litellm.completion(**{**short, "max_tokens": 64}, response_format=wanted)
        expect(json.loads(response.choices[0].message.content)["legs"] in (2, 4), response)
    with checks("tools"):
        function = {"name": "count_legs", "description": "Counts legs.", "parameters": SCHEMA}
        response = litellm.completion(
            **{**short, "max_tokens": 100},
            tools=[{"type": "function", "function": function}],
            tool_choice="required",
        )
        call = response.choices[0].message.tool_calls[0]
        expect(json.loads(call.function.arguments)["legs"] in (2, 4), call)
    with checks("error"):
        try:
            litellm.completion(**{**short, "temperature": -1})
        except litellm.BadRequestError as error:
            expect("temperature" in str(error), error)
        else:
            raise AssertionError("accepted")


if __name__ == "__main__":
    main()
