"""Questions as requests."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from benchmarks.prompts import load_prompts
from engine.api import EngineRequest, SamplingParams
from router.text.chat_template import ChatTemplate
from router.text.tokenizer import Tokenizer

SETS = ("mt_bench", "humaneval", "summarize")

TokenIds = tuple[int, ...]


async def _token_ids(model_dir: Path, questions: Sequence[str]) -> list[TokenIds]:
    tokenizer, template = Tokenizer.load(model_dir), ChatTemplate.load(model_dir)
    rendered = [template.render([{"role": "user", "content": question}]) for question in questions]
    return [tuple(await tokenizer.encode(text, add_special_tokens=False)) for text in rendered]


def prompts_of(name: str, folder: Path, model_dir: Path, limit: int) -> list[TokenIds]:
    """One set's prompts in the model's chat form, evenly thinned out to `limit`; 0 for all.

    Raises SystemExit where there are none.
    """
    chosen = [prompt.text for prompt in load_prompts(folder) if prompt.name.startswith(name)]
    if not chosen:
        raise SystemExit(f"no questions of {name} in {folder}")
    step = max(1, len(chosen) // limit) if limit else 1
    return asyncio.run(_token_ids(model_dir, chosen[::step][: limit or None]))


def requests_of(
    prompts: Sequence[TokenIds], tokens: int, temperature: float = 0.0, first_seed: int = 0, salt: str = ""
) -> list[EngineRequest]:
    """One request for each prompt, with a seed of its own, of the tenant `salt`."""
    return [
        EngineRequest(
            str(number),
            ids,
            SamplingParams(
                temperature, top_p=1.0, top_k=0, seed=first_seed + number, choice=0, max_tokens=tokens
            ),
            cache_salt=salt,
        )
        for number, ids in enumerate(prompts)
    ]


def mixed(sets: Sequence[Sequence[TokenIds]], count: int) -> list[TokenIds]:
    """`count` prompts, the sets taking turns; from the beginning again where they end."""
    turns = [ids for group in zip(*sets, strict=False) for ids in group]
    return (turns * (count // len(turns) + 1))[:count]
