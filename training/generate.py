"""The target writes answers, by our own engine with continuous batching, and what it knew is kept.

A head learns to guess what the target says, so it is trained on the target's own words. Half of the answers
are greedy, half are drawn at temperature 1: both are served. What is written does not depend on the batch,
so a run that was stopped goes on with the first shard that is missing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch

from engine.api import EngineRequest, SamplingParams
from engine.config import EngineConfig
from engine.core import LLMEngine
from engine.kv.storage import allocate_pool
from engine.models.errors import UnsupportedModelError
from engine.models.features import FeaturePoints
from engine.models.loader import load_model, torch_dtype
from training.answers import Answer, shard_path, write_shard
from training.prompts.mixture import Prompt
from training.recording import RecordingModel
from training.target import feature_layers, require_trainable

PromptEncoder = Callable[[Prompt], Sequence[int]]
"""From a chat to the token ids that a server would give the model for it."""


@dataclass(frozen=True, slots=True)
class GenerationConfig:
    """How answers are written.

    Attributes:
        model_dir: the target, a Hugging Face folder.
        num_prompts: how many answers.
        shard_size: answers of one shard.
        max_prompt_tokens: longer prompts are left out.
        max_new_tokens: most tokens of an answer. Small models repeat themselves later on, which is easily
            guessed: beginnings teach more.
        batch_size: answers written at once.
        seed: of the draws.
        dtype: of the engine.
        quantization: of the engine.
        device: torch device.
    """

    model_dir: Path
    num_prompts: int
    shard_size: int = 64
    max_prompt_tokens: int = 1280
    max_new_tokens: int = 144
    batch_size: int = 32
    seed: int = 0
    dtype: str = "float32"
    quantization: str = "none"
    device: str = "cpu"


@dataclass(frozen=True, slots=True)
class GenerationProgress:
    """What is written so far, by this run, in tokens and wall seconds."""

    answers: int
    new_tokens: int
    seconds: float


class _NoHasher:
    """Prompts share little: no prefix is looked for."""

    def seed(self, cache_salt: str) -> bytes:
        return bytes(16)

    def extend(self, parent: bytes, token_ids: Sequence[int]) -> bytes:
        return bytes(16)


@dataclass(slots=True)
class _Shard:
    path: Path
    answers: list[Answer | None]
    missing: int


class _Writing:
    """Sequences in the engine, and the shards that they belong to."""

    def __init__(self, engine: LLMEngine, model: RecordingModel, config: GenerationConfig) -> None:
        self._engine = engine
        self._model = model
        self._config = config
        self._tokens: dict[str, list[int]] = {}
        self._places: dict[str, tuple[_Shard, int, Prompt, list[int]]] = {}

    @property
    def open(self) -> int:
        """Answers that are not finished."""
        return len(self._places)

    def begin(self, index: int, prompt: Prompt, token_ids: list[int], shard: _Shard, place: int) -> None:
        """Has the engine write answer `index`."""
        name = str(index)
        self._places[name] = (shard, place, prompt, token_ids)
        self._tokens[name] = []
        sampling = SamplingParams(
            temperature=0.0 if index % 2 == 0 else 1.0,
            top_p=1.0,
            top_k=0,
            seed=self._config.seed * 1_000_003 + index,
            choice=0,
            max_tokens=self._config.max_new_tokens,
        )
        self._engine.submit(EngineRequest(name, tuple(token_ids), sampling))

    def step(self) -> int:
        """Runs the engine once; returns how many answers came to an end."""
        output = self._engine.step()
        if output.failures:
            raise RuntimeError(f"the target failed: {output.failures[0].message}")
        ended = 0
        for token in output.tokens:
            self._tokens[token.request_id].append(token.token_id)
            if token.finish_reason is not None:
                self._end(token.request_id)
                ended += 1
        return ended

    def _end(self, name: str) -> None:
        shard, place, prompt, token_ids = self._places.pop(name)
        whole = token_ids + self._tokens.pop(name)
        recording = self._model.take(whole[:-1])
        features = torch.cat(recording.features)
        inner = self._model.config.hidden_size * self._model.num_layers_read
        tail = range(len(token_ids), len(whole) - 1)
        shard.answers[place] = Answer(
            kind=prompt.kind,
            greedy=int(name) % 2 == 0,
            prompt_length=len(token_ids),
            token_ids=torch.tensor(whole, dtype=torch.int32),
            features=features[:, :inner].contiguous(),
            final=features[len(token_ids) :, inner:].contiguous(),
            log_totals=torch.tensor([recording.log_totals[position] for position in tail]),
        )
        shard.missing -= 1
        if not shard.missing:
            write_shard(shard.path, [answer for answer in shard.answers if answer is not None])


def generate(
    config: GenerationConfig,
    prompts: Iterator[Prompt],
    encode: PromptEncoder,
    folder: Path,
    report: Callable[[GenerationProgress], None],
) -> list[Path]:
    """Has the target answer prompts, into shards in `folder`; those that are there already are kept.

    Args:
        config: how.
        prompts: what; those that are too long are skipped.
        encode: makes token ids of them.
        folder: of the shards; exists.
        report: told of progress about once a second.

    Returns:
        The shards.

    Raises:
        ModelError: the target cannot be loaded, or no head can be trained for it, or with answers so long.
        RuntimeError: the target gave no numbers.
    """
    shards = -(-config.num_prompts // config.shard_size)
    paths = [shard_path(folder, index) for index in range(shards)]
    if all(path.exists() for path in paths):
        return paths
    model = _recording(config)
    writing = _Writing(_engine(config, model), model, config)
    began = reported = time.monotonic()
    tokens = answers = 0
    source = _numbered(config, prompts, encode, paths)
    exhausted = False
    while True:
        # A few more than run, so that the batch stays full.
        while not exhausted and writing.open < config.batch_size + 8:
            following = next(source, None)
            if following is None:
                exhausted = True
            else:
                writing.begin(*following)
        if not writing.open:
            return [path for path in paths if path.exists()]
        tokens += min(writing.open, config.batch_size)
        answers += writing.step()
        if time.monotonic() - reported > 1.0:
            reported = time.monotonic()
            report(GenerationProgress(answers, tokens, reported - began))


def _numbered(
    config: GenerationConfig, prompts: Iterator[Prompt], encode: PromptEncoder, paths: Sequence[Path]
) -> Iterator[tuple[int, Prompt, list[int], _Shard, int]]:
    """Prompts that are short enough, with their places, those of finished shards left out."""
    short = (
        (prompt, token_ids)
        for prompt in prompts
        if len(token_ids := list(encode(prompt))) <= config.max_prompt_tokens
    )
    index = 0
    for path in paths:
        size = min(config.shard_size, config.num_prompts - index)
        chosen = list(islice(short, size))
        if not path.exists() and chosen:
            shard = _Shard(path, [None] * len(chosen), len(chosen))
            for place, (prompt, token_ids) in enumerate(chosen):
                yield index + place, prompt, token_ids, shard, place
        index += size


def _recording(config: GenerationConfig) -> RecordingModel:
    model = load_model(
        config.model_dir, dtype=config.dtype, quantization=config.quantization, device=config.device
    )
    require_trainable(model.config)
    length = config.max_prompt_tokens + config.max_new_tokens
    if any(0 < window < length for window in model.config.windows):
        raise UnsupportedModelError(
            f"the model's window of {max(model.config.windows)} tokens is shorter than prompt and answer may "
            f"be, {length} tokens: choose less of them"
        )
    return RecordingModel(model, FeaturePoints(feature_layers(model.config.num_layers), final=True))


def _engine(config: GenerationConfig, model: RecordingModel) -> LLMEngine:
    length = config.max_prompt_tokens + config.max_new_tokens
    settings = EngineConfig(
        config.model_dir,
        dtype=config.dtype,
        quantization=config.quantization,
        max_model_len=length,
        max_running=config.batch_size,
        # Nobody waits for a first token.
        max_decode_slowdown=0.0,
        swap_memory_bytes=0,
        enable_prefix_cache=False,
        device=config.device,
    )
    # Room for the longest, so that none is preempted.
    pages = config.batch_size * (-(-length // settings.block_size) + 1)
    blocks = pages * len(model.config.layer_groups)
    pool = allocate_pool(model.config, blocks, settings.block_size, torch_dtype(config.dtype), config.device)
    return LLMEngine(model, pool, settings, _NoHasher())
