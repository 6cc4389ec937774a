"""Doors whose model calls, reasons or answers in a form, and the `openai` client in front of them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai

from router.generation import GrammarSpec
from tests.router.doors import Doors, open_doors
from tests.support.scripted_dispatcher import Script, ScriptedDispatcher, says

MESSAGES: Any = [{"role": "user", "content": "hi"}]
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 8}, "days": {"type": "integer", "minimum": 1}},
    "required": ["city"],
}
TOOLS: Any = [
    {"type": "function", "function": {"name": "get_weather", "description": "…", "parameters": PARAMETERS}},
    {"type": "function", "function": {"name": "now"}},
]


@asynccontextmanager
async def answering(
    folder: Path, text: str, template: str, **script: Any
) -> AsyncIterator[tuple[Doors, openai.AsyncOpenAI]]:
    dispatcher = ScriptedDispatcher(Script(says(text), **script))
    async with (
        open_doors(folder, dispatcher, template=template, max_model_len=4096) as doors,
        openai.AsyncOpenAI(base_url=f"{doors.url}/v1", api_key="none", max_retries=0) as client,
    ):
        yield doors, client


def grammar_of(doors: Doors) -> GrammarSpec | None:
    return doors.dispatcher.generations[-1].request.sampling.grammar
