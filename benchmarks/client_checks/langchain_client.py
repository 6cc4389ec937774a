"""langchain-openai's ChatOpenAI with a base URL."""

from __future__ import annotations

from typing import Any, Literal

from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI
from pydantic import BaseModel, ConfigDict

from benchmarks.client_checks.checks import Checks, Target, expect

QUESTION = "Name three colours of the rainbow."


class Animal(BaseModel):
    """An animal."""

    model_config = ConfigDict(extra="forbid")  # or the model may add properties without end

    kind: Literal["cat", "dog", "bird"]
    legs: Literal[2, 4]


@tool
def multiply(left: Literal[2, 3], right: Literal[4, 5]) -> int:
    """Multiplies two numbers."""
    return left * right


def main() -> None:
    """All checks."""
    checks, target = Checks(), Target.from_arguments()
    common: dict[str, Any] = {
        "model": target.model, "base_url": target.openai_url, "api_key": "none", "max_retries": 0,
        "temperature": 0,
    }  # fmt: skip
    chat = ChatOpenAI(max_tokens=16, **common)
    answer = ""
    with checks("invoke"):
        message = chat.invoke(QUESTION)
        answer = str(message.content)
        expect(answer and message.usage_metadata, message)
    with checks("stream"):
        joined = "".join(str(chunk.content) for chunk in chat.stream(QUESTION))
        expect(joined == answer, joined)
    with checks("batch"):
        contents = [message.content for message in chat.batch([QUESTION] * 4)]
        expect(contents == [answer] * 4, contents)
    with checks("completion model"):
        expect(OpenAI(max_tokens=8, **common).invoke("One, two,"), "nothing")
    with checks("logprobs"):
        message = chat.bind(logprobs=True, top_logprobs=2).invoke(QUESTION)
        expect(message.response_metadata["logprobs"]["content"], message)
    long = ChatOpenAI(max_tokens=100, **common)
    with checks("structured output, json_schema"):
        animal = long.with_structured_output(Animal, method="json_schema").invoke("Describe a cat.")
        expect(isinstance(animal, Animal), animal)
    with checks("structured output, function_calling"):
        called = long.with_structured_output(Animal, method="function_calling", include_raw=True)
        found = called.invoke("Describe a cat.")
        expect(isinstance(found["parsed"], Animal), found)
    with checks("tool call and its result"):
        message = long.bind_tools([multiply], tool_choice="required").invoke("What is 2 times 4?")
        call = message.tool_calls[0]
        result = multiply.invoke(call["args"])
        said = ToolMessage(str(result), tool_call_id=call["id"])
        found = chat.bind_tools([multiply]).invoke([HumanMessage("What is 2 times 4?"), message, said])
        expect(found.response_metadata["finish_reason"], found)


if __name__ == "__main__":
    main()
