"""Prompts to measure with: question files in the `question_id, category, turns` form."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Prompt:
    """First turn of one question. `name` is file and id, unique in a folder."""

    name: str
    text: str


def load_prompts(folder: Path) -> list[Prompt]:
    """Every question of every `.jsonl` file of a folder, in the order of names.

    Raises SystemExit with the reason where there is none.
    """
    files = sorted(folder.glob("*.jsonl"))
    if not files:
        raise SystemExit(f"no .jsonl files in {folder}; name a folder of question files with --prompts")
    prompts = []
    for file in files:
        for line in file.read_text().splitlines():
            question = json.loads(line)
            prompts.append(Prompt(f"{file.stem}/{question['question_id']}", question["turns"][0]))
    return prompts
