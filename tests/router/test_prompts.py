"""Prompts of every form: what is refused before it costs anything, and what never blocks the event loop."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from router.errors import InvalidRequestError
from router.prompt_options import ChatOptions
from router.prompts import ChatPrompt, Prompt, PromptReader, ServedModel, TextPrompt, TokenPrompt
from router.text.chat_template import ChatTemplate
from router.text.tokenizer import INLINE_CHARACTERS
from tests.router.doors import MAX_MODEL_LEN, served_model

# Characters of the tiny tokenizer's longest token, which is an added one.
LONGEST = len("<|endoftext|>")
BOUND = LONGEST * MAX_MODEL_LEN


@pytest.fixture
def model(tmp_path: Path) -> ServedModel:
    return served_model(tmp_path)


def said(text: str, **options: Any) -> ChatPrompt:
    return ChatPrompt(({"role": "user", "content": text},), options=ChatOptions(**options))


class _Untouched:
    """A tokenizer's library that must not be asked."""

    def __getattr__(self, name: str) -> Any:
        pytest.fail(f"{name} was asked for")


@pytest.mark.parametrize("prompt", [TextPrompt("a" * (BOUND + 1)), said("a" * (BOUND + 1))])
async def test_what_cannot_fit_is_refused_before_it_is_tokenized(
    model: ServedModel, prompt: Prompt, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert model.tokenizer.longest_token == LONGEST
    monkeypatch.setattr(model.tokenizer, "_library", _Untouched())
    with pytest.raises(InvalidRequestError, match="context length") as caught:
        await PromptReader(model).read(prompt, None, None)
    assert caught.value.param == ("prompt" if isinstance(prompt, TextPrompt) else "messages")


async def test_the_longest_prompt_that_may_fit_is_counted(model: ServedModel) -> None:
    reader = PromptReader(model)
    text = "<|endoftext|>" * (MAX_MODEL_LEN - 1)
    assert len(await reader.read(TextPrompt(text), None, None)) == MAX_MODEL_LEN - 1
    with pytest.raises(InvalidRequestError, match=f"{MAX_MODEL_LEN} tokens"):
        await reader.read(TextPrompt(text + "<|endoftext|>"), None, None)


async def test_a_call_that_only_tokenizes_takes_longer_ones(model: ServedModel) -> None:
    assert len(await PromptReader(model).tokenize(TextPrompt("a" * (BOUND + 1)))) == BOUND + 1


@pytest.mark.parametrize(
    ("prompt", "inline"),
    [
        (said("a" * (INLINE_CHARACTERS - len("user"))), True),
        (said("a" * (INLINE_CHARACTERS + 1)), False),
        (ChatPrompt(tuple({"role": "user", "content": "a"} for _ in range(65))), False),
        (ChatPrompt(({"role": "user", "content": "a"},), tools=({"type": "function"},)), False),
        (ChatPrompt(({"role": "assistant", "content": "", "tool_calls": [{}]},)), False),
        (ChatPrompt(({"role": "assistant", "reasoning_content": "a" * (INLINE_CHARACTERS + 1)},)), False),
    ],
)
async def test_large_chats_are_rendered_beside_the_event_loop(
    model: ServedModel, prompt: ChatPrompt, inline: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[threading.Thread] = []
    render = ChatTemplate.render

    def watched(self: ChatTemplate, *args: Any, **options: Any) -> str:
        threads.append(threading.current_thread())
        return render(self, *args, **options)

    monkeypatch.setattr(ChatTemplate, "render", watched)
    await PromptReader(model).tokenize(prompt)
    assert [thread is threading.main_thread() for thread in threads] == [inline]


async def test_a_template_that_never_ends_is_cut_off(tmp_path: Path) -> None:
    template = "{% for i in range(90000) %}{{ messages[0].content }}{% endfor %}"
    model = replace(served_model(tmp_path), chat_template=ChatTemplate(template, {}, "test"))
    with pytest.raises(InvalidRequestError, match=f"more than {BOUND} characters"):
        await asyncio.wait_for(PromptReader(model).read(said("a" * 1000), None, None), 30)


@pytest.mark.parametrize(
    ("truncate", "max_tokens", "kept"), [(2, None, 2), (99, 5, 6), (-1, 5, 6), (-1, 508, 4)]
)
async def test_truncation(model: ServedModel, truncate: int, max_tokens: int | None, kept: int) -> None:
    token_ids = (1, 2, 3, 4, 5, 6)
    read = await PromptReader(model).read(TokenPrompt(token_ids), truncate, max_tokens)
    assert read == token_ids[-kept:]
