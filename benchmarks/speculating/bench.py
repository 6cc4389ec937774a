"""Engines that speculate in different ways over one model, and streams of requests through them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from uuid import uuid4

import torch

from benchmarks.speculating.prefilled import Prefilled, prefill, take_over
from benchmarks.speculating.stretch import Stretch, step_of
from benchmarks.speculating.variants import Variant
from engine.api import EngineRequest
from engine.config import EngineConfig
from engine.core import LLMEngine
from engine.kv.storage import allocate_pool
from engine.models.base import DraftedLM
from engine.models.cores import leave_cores_to_kernels
from engine.models.loader import load_model, torch_dtype
from engine.speculation.assembly import make_speculator
from engine.speculation.base import Target
from engine.speculation.choice import Drafters
from engine.speculation.planner import FixedPlanner
from engine.speculation.registry import create_drafter, draft_layers
from engine.speculation.speculator import Speculator
from prefix_index.hashing import ChainHasher

_MAX_MODEL_LEN = 2048
_MOST_DRAFTS = 64
"""Room for the drafts of one sequence."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model in memory.

    Attributes:
        model: the target.
        model_dir: its Hugging Face folder.
        quantization: of its weights.
        threads: that compute.
    """

    model: DraftedLM
    model_dir: Path
    quantization: str
    threads: int

    @classmethod
    def load(cls, model_dir: Path, quantization: str, threads: int) -> Loaded:
        """Loads it, to be computed with so many threads. Raises ModelError."""
        torch.set_num_threads(threads)
        model = load_model(model_dir, quantization=quantization, context_length=_MAX_MODEL_LEN)
        # As in a worker.
        leave_cores_to_kernels(model)
        return cls(model, model_dir, quantization, threads)


class Bench:
    """An engine for each variant, which goes on learning from run to run.

    Args:
        loaded: the model of all of them.
        batch: most sequences at a time.
        requests: what each engine is to hold the KV of at once; their prompts are found there from the start.
    """

    def __init__(self, loaded: Loaded, batch: int, requests: Sequence[EngineRequest]) -> None:
        self._loaded = loaded
        self._config = EngineConfig(
            model_dir=loaded.model_dir,
            quantization=loaded.quantization,
            threads=loaded.threads,
            max_model_len=_MAX_MODEL_LEN,
            max_running=batch,
            # Prompts come one by one, as a prefill worker's do: no step mixes them with decodes for long.
            max_decode_slowdown=0,
            swap_memory_bytes=0,
        )
        own = sum(len(r.prompt_token_ids) + r.sampling.max_tokens + self._config.block_size for r in requests)
        self._num_tokens = max(own + batch * _MOST_DRAFTS, _MAX_MODEL_LEN)
        self._requests = requests
        self._engines: dict[str, LLMEngine] = {}
        # By layers of a pool: those of a head lie in it, too.
        self._prefilled: dict[int, list[Prefilled]] = {}

    def engine(self, variant: Variant) -> LLMEngine:
        """The variant's engine. Raises as `make_speculator`."""
        if variant.name not in self._engines:
            engine, pool = self._make(variant)
            layers = pool.shape[1]
            if layers in self._prefilled:
                take_over(engine, pool, self._prefilled[layers])
            else:
                self._prefilled[layers] = prefill(engine, pool, self._requests)
            self._engines[variant.name] = engine
        return self._engines[variant.name]

    def close(self, variant: Variant) -> None:
        """Lets the variant's engine go, with what it has learnt."""
        self._engines.pop(variant.name, None)

    def _make(self, variant: Variant) -> tuple[LLMEngine, torch.Tensor]:
        config = replace(self._config, speculation=variant.speculation)
        model, size = self._loaded.model, config.block_size
        pages = -(-self._num_tokens // size)
        pool = allocate_pool(
            model.config,
            pages * len(model.config.layer_groups),
            size,
            torch_dtype(config.dtype),
            draft_layers=draft_layers(variant.speculation, model.config),
        )
        if variant.drafts is None:
            speculator = make_speculator(model, pool, config)
        else:
            target = Target(model, pool, config, config.max_model_len)
            drafter = create_drafter(variant.speculation, target)
            drafters = Drafters(drafter, variant.speculation.method)
            speculator = None if drafter is None else Speculator(drafters, FixedPlanner(variant.drafts))
        engine = LLMEngine(model, pool, config, ChainHasher("benchmark", size), speculator=speculator)
        return engine, pool


class Stream:
    """Requests on their way through one engine, `batch` at a time.

    Only steps in which the whole batch decodes are counted. Those with prompt tokens are run and not counted:
    they cost what they cost, whoever guesses.

    Attributes:
        is_over: too few requests are left to fill the batch.
    """

    def __init__(self, engine: LLMEngine, requests: Iterable[EngineRequest], batch: int) -> None:
        self._engine = engine
        self._waiting = [replace(request, request_id=uuid4().hex) for request in requests][::-1]
        self._alive: set[str] = set()
        self._batch = batch
        self.is_over = False
        self._fill()

    def advance(self, tokens: int) -> Stretch:
        """Decodes until so many tokens are drawn in counted steps, or the stream is over.

        Raises RuntimeError where a request fails.
        """
        engine, total = self._engine, Stretch()
        while not self.is_over and total.tokens < tokens:
            before = engine.stats().speculation
            output = engine.step()
            if output.failures:
                raise RuntimeError(str(output.failures))
            self._alive -= {token.request_id for token in output.tokens if token.finish_reason is not None}
            decoded = {token.request_id for token in output.tokens}
            if not output.prefills_done and len(decoded) == self._batch:
                drafted = [report.drafted for report in output.drafts]
                total += step_of(
                    len(output.tokens),
                    output.duration_s,
                    drafted,
                    before,
                    engine.stats().speculation,
                    self._batch,
                )
            self._fill()
        return total

    def _fill(self) -> None:
        while self._waiting and len(self._alive) < self._batch:
            request = self._waiting.pop()
            self._alive.add(request.request_id)
            self._engine.submit(request)
        if len(self._alive) < self._batch:
            self.is_over = True
            for request_id in self._alive:
                self._engine.cancel(request_id)
            self._alive.clear()


@dataclass(slots=True)
class Answer:
    """One request's passes behind the first token.

    Attributes:
        tokens: drawn in them.
        passes: of the target.
        by_accepted: passes by how many drafts were right.
    """

    tokens: int = 0
    passes: int = 0
    by_accepted: Counter[int] = field(default_factory=Counter)


def answers(engine: LLMEngine, requests: Sequence[EngineRequest], batch: int) -> list[Answer]:
    """What became of each request, whatever ran beside it: what is accepted does not depend on that.

    Raises RuntimeError where a request fails.
    """
    names = [uuid4().hex for _ in requests]
    found: Mapping[str, Answer] = {name: Answer() for name in names}
    waiting = [replace(request, request_id=name) for request, name in zip(requests, names, strict=True)][::-1]
    alive = 0
    while waiting or alive:
        while waiting and alive < batch:
            engine.submit(waiting.pop())
            alive += 1
        output = engine.step()
        if output.failures:
            raise RuntimeError(str(output.failures))
        for report in output.drafts:
            found[report.request_id].passes += 1
            found[report.request_id].by_accepted[report.accepted] += 1
        for token in output.tokens:
            # The first one comes of the prompt's last chunk.
            found[token.request_id].tokens += token.index > 0
            alive -= token.finish_reason is not None
    return list(found.values())
