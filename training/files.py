"""Prompts from files: JSON Lines, each line an object with `prompt` or with `messages`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from training.prompts.mixture import Message, Prompt

_ROLES = ("system", "user", "assistant")


class PromptFileError(ValueError):
    """A file of prompts cannot be used; the message names file and line."""


def read_prompts(paths: Sequence[Path]) -> Iterator[Prompt]:
    """Prompts of files, one file after the other; a file's name is the kind of its prompts.

    Raises:
        PromptFileError: a file that cannot be read, or a line that is no prompt.
    """
    for path in paths:
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise PromptFileError(f"{path} cannot be read: {error}") from error
        for number, line in enumerate(text.splitlines(), 1):
            if line.strip():
                yield Prompt(path.stem, _messages(line, f"{path}, line {number}"))


def _messages(line: str, where: str) -> tuple[Message, ...]:
    try:
        entry = json.loads(line)
    except ValueError as error:
        raise PromptFileError(f"{where}: not JSON: {error}") from error
    if not isinstance(entry, dict) or ("prompt" in entry) == ("messages" in entry):
        raise PromptFileError(f"{where}: an object with either 'prompt' or 'messages' is expected")
    messages = [{"role": "user", "content": entry["prompt"]}] if "prompt" in entry else entry["messages"]
    if not isinstance(messages, list) or not messages:
        raise PromptFileError(f"{where}: 'messages' must be a list that is not empty")
    read = tuple(_message(message, where) for message in messages)
    if read[-1].role != "user":
        raise PromptFileError(f"{where}: the last message must be the user's")
    return read


def _message(message: object, where: str) -> Message:
    if isinstance(message, dict):
        role, content = message.get("role"), message.get("content")
        if role in _ROLES and isinstance(content, str) and content:
            return Message(role, content)
    raise PromptFileError(f"{where}: a message has a role ({', '.join(_ROLES)}) and a text as content")
