"""Perplexity of the engine on a text, through what a user can ask for: log probabilities of the prompt."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from tokenizers import Tokenizer

from engine.api import EngineRequest, SamplingParams
from engine.config import EngineConfig
from worker.assembly import assemble
from worker.config import WorkerConfig

# The project's own prose: English with terms, tables and commands, which no model was trained on.
TEXTS = tuple(
    Path(__file__).resolve().parents[1] / "docs" / name for name in ("architecture.md", "handover.md")
)
WINDOW = 512


def perplexity(model_dir: Path, settings: Mapping[str, object]) -> float:
    """exp of the mean negative log probability of each token of a window, given those before it in it.

    Args:
        model_dir: Hugging Face folder.
        settings: further fields of `EngineConfig`, for example the precision.

    Raises:
        RuntimeError: the engine gave a window up.
    """
    config = EngineConfig(model_dir=model_dir, max_model_len=WINDOW + 1, **settings)  # type: ignore[arg-type]
    engine = assemble(WorkerConfig("text-0", 1, "local", "text", config, transports=())).engine
    tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
    token_ids = tokenizer.encode("\n".join(file.read_text() for file in TEXTS)).ids
    sampling = SamplingParams(
        temperature=0.0, top_p=1.0, top_k=0, seed=0, choice=0, max_tokens=1, prompt_logprobs=0
    )
    for start in range(0, len(token_ids) - 1, WINDOW):
        window = tuple(token_ids[start : start + WINDOW])
        if len(window) > 1:
            engine.submit(EngineRequest(f"text/{start}", window, sampling))
    logprobs: list[float] = []
    while engine.has_work():
        output = engine.step()
        if output.failures:
            raise RuntimeError(f"the engine gave up: {output.failures}")
        for done in output.prefills_done:
            logprobs += [token.logprob for token in done.prompt_logprobs]
    if not logprobs:
        raise RuntimeError("the engine reported no log probabilities of the prompt")
    return math.exp(-sum(logprobs) / len(logprobs))
