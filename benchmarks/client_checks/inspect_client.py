"""inspect-ai with its provider for OpenAI-compatible servers."""

from __future__ import annotations

from typing import Any

import inspect_ai
from inspect_ai import Task
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.model import GenerateConfig, ResponseSchema, get_model
from inspect_ai.scorer import includes
from inspect_ai.solver import generate, system_message, use_tools
from inspect_ai.tool import Tool, tool
from inspect_ai.util import json_schema
from pydantic import BaseModel

from benchmarks.client_checks.checks import Checks, Target, expect


class Animal(BaseModel):
    """What structured output is parsed into."""

    legs: int


@tool
def add() -> Tool:
    """Made by inspect-ai's decorator."""

    async def execute(x: int, y: int) -> int:
        """Adds two numbers.

        Args:
            x: First number.
            y: Second number.
        """
        return x + y

    return execute


def main() -> None:
    """All checks."""
    checks, target = Checks(), Target.from_arguments()
    settings: dict[str, Any] = {"base_url": target.openai_url, "api_key": "none"}
    model = get_model(f"openai-api/local/{target.model}", **settings)

    def run(task: Task) -> Any:
        (log,) = inspect_ai.eval(task, model=model, log_dir=target.folder, display="none", max_retries=0)
        expect(log.status == "success", log.error)
        expect(log.samples and all(sample.error is None for sample in log.samples), log.samples)
        return log

    samples = [Sample("What is the capital of France?", target="Paris"), Sample("2 + 2 =", target="4")]
    short = GenerateConfig(temperature=0, max_tokens=24, seed=1)
    with checks("task with a scorer"):
        solver = [system_message("Answer in one sentence."), generate()]
        log = run(Task(MemoryDataset(samples), solver=solver, scorer=includes(), config=short))
        expect(log.results.completed_samples == 2 and log.results.scores[0].metrics, log.results)
        expect(all(sample.output.usage.output_tokens > 0 for sample in log.samples), log.samples)
    with checks("log probabilities"):
        config = GenerateConfig(temperature=0, max_tokens=8, logprobs=True, top_logprobs=2)
        log = run(Task(MemoryDataset(samples[:1]), solver=generate(), config=config))
        expect(log.samples[0].output.choices[0].logprobs.content, log.samples)
    with checks("response schema"):
        schema = ResponseSchema(name="animal", json_schema=json_schema(Animal))
        config = GenerateConfig(temperature=0, max_tokens=64, response_schema=schema)
        log = run(Task(MemoryDataset([Sample("How many legs has a cat?")]), solver=generate(), config=config))
        Animal.model_validate_json(log.samples[0].output.completion)
    with checks("tools"):
        # One call at least, and the turn after its result.
        call = [use_tools(add(), tool_choice="any"), generate(tool_calls="single")]
        solver = [*call, use_tools([]), generate()]
        config = GenerateConfig(temperature=0, max_tokens=100, parallel_tool_calls=False)
        log = run(Task(MemoryDataset([Sample("Add 2 and 3.")]), solver=solver, config=config))
        calls = [call for m in log.samples[0].messages for call in getattr(m, "tool_calls", None) or []]
        expect([call.function for call in calls] == ["add"], calls)


if __name__ == "__main__":
    main()
