"""Engines that speculate in different ways over one model, and what a stretch of decoding gave with each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from uuid import uuid4

from engine.api import EngineRequest
from engine.config import EngineConfig
from engine.core import LLMEngine
from engine.kv.storage import allocate_pool, block_bytes
from engine.models.base import DraftedLM
from engine.models.loader import load_model, torch_dtype
from engine.speculation.assembly import make_speculator
from engine.speculation.base import Target
from engine.speculation.choice import Drafters
from engine.speculation.config import NO_SPECULATION, SpeculationConfig
from engine.speculation.planner import FixedPlanner
from engine.speculation.registry import create_drafter, draft_layers
from engine.speculation.speculator import Speculator
from prefix_index.hashing import ChainHasher

_MAX_MODEL_LEN = 2048


@dataclass(frozen=True, slots=True)
class Variant:
    """A way to speculate.

    Attributes:
        name: as tables show it.
        speculation: settings of the engine.
        drafts: always so many; None lets the engine choose where `speculation.adaptive` says so, and asks for
            all that the method allows otherwise.
    """

    name: str
    speculation: SpeculationConfig = NO_SPECULATION
    drafts: int | None = None


NONE = Variant("none")


@dataclass(frozen=True, slots=True)
class Stretch:
    """What decoding a batch gave while all of it decoded.

    Attributes:
        tokens: drawn.
        seconds: that took.
        passes: decodes, each sequence of a pass counted.
        drafted: drafts verified.
        reached: passes whose drafts went so far, by position.
        accepted: passes in which the draft there was right.
    """

    tokens: int = 0
    seconds: float = 0.0
    passes: int = 0
    drafted: int = 0
    reached: tuple[int, ...] = ()
    accepted: tuple[int, ...] = ()

    @property
    def rate(self) -> float:
        """Tokens a second."""
        return self.tokens / self.seconds

    @property
    def per_pass(self) -> float:
        """Tokens of a sequence in a pass of the target."""
        return self.tokens / self.passes

    def __add__(self, other: Stretch) -> Stretch:
        return Stretch(
            self.tokens + other.tokens,
            self.seconds + other.seconds,
            self.passes + other.passes,
            self.drafted + other.drafted,
            tuple(a + b for a, b in zip_longest(self.reached, other.reached, fillvalue=0)),
            tuple(a + b for a, b in zip_longest(self.accepted, other.accepted, fillvalue=0)),
        )


class Bench:
    """One model in memory, and an engine for each variant, which goes on learning from stretch to stretch.

    Args:
        model_dir: Hugging Face folder.
        quantization: of all engines.
        threads: of torch.
        max_batch: most sequences at a time.
        kv_bytes: memory of each engine's pool.
    """

    def __init__(
        self, model_dir: Path, *, quantization: str, threads: int, max_batch: int, kv_bytes: int
    ) -> None:
        self._config = EngineConfig(
            model_dir=model_dir,
            quantization=quantization,
            threads=threads,
            max_model_len=_MAX_MODEL_LEN,
            max_running=max_batch,
            # Prompts come one by one, as a prefill worker's do: no step mixes them with decodes for long.
            max_decode_slowdown=0,
            swap_memory_bytes=0,
            enable_prefix_cache=False,
        )
        self._kv_bytes = kv_bytes
        self._model = load_model(
            model_dir, quantization=quantization, context_length=self._config.max_model_len
        )
        self._engines: dict[str, LLMEngine] = {}

    @property
    def model(self) -> DraftedLM:
        """The target."""
        return self._model

    def run(self, variant: Variant, requests: Sequence[EngineRequest], batch: int) -> Stretch:
        """Decodes requests, `batch` at a time; what counts is the time in which all of these decode.

        Steps with prompt tokens are run and not counted: they cost what they cost, whoever guesses. Raises
        RuntimeError where a request fails.
        """
        engine = self._engine(variant)
        waiting = [replace(request, request_id=uuid4().hex) for request in reversed(requests)]
        alive: set[str] = set()
        total = Stretch()
        while waiting or len(alive) >= batch:
            while waiting and len(alive) < batch:
                request = waiting.pop()
                alive.add(request.request_id)
                engine.submit(request)
            before = engine.stats().speculation
            output = engine.step()
            if output.failures:
                raise RuntimeError(f"{variant.name}: {output.failures}")
            alive -= {token.request_id for token in output.tokens if token.finish_reason is not None}
            # A step with prompt tokens, or one after a sequence has ended and before the next has come.
            if output.prefills_done or len({token.request_id for token in output.tokens}) < batch:
                continue
            after = engine.stats().speculation
            step = Stretch(len(output.tokens), output.duration_s, batch)
            if before is not None and after is not None:
                step = replace(
                    step,
                    drafted=after.drafted_tokens - before.drafted_tokens,
                    reached=_gained(after.reached_by_position, before.reached_by_position),
                    accepted=_gained(after.accepted_by_position, before.accepted_by_position),
                )
            total += step
        for request_id in alive:
            engine.cancel(request_id)
        return total

    def _engine(self, variant: Variant) -> LLMEngine:
        if variant.name not in self._engines:
            self._engines[variant.name] = self._make(variant)
        return self._engines[variant.name]

    def _make(self, variant: Variant) -> LLMEngine:
        config = replace(self._config, speculation=variant.speculation)
        model, size = self._model, self._config.block_size
        dtype = torch_dtype(config.dtype)
        layers = draft_layers(variant.speculation, model.config)
        num_blocks = self._kv_bytes // (
            block_bytes(model.config, size, dtype, layers) * len(model.config.layer_groups)
        )
        num_blocks *= len(model.config.layer_groups)
        pool = allocate_pool(model.config, num_blocks, size, dtype, draft_layers=layers)
        if variant.drafts is None:
            speculator = make_speculator(model, pool, config)
        else:
            target = Target(model, pool, config, config.max_model_len)
            drafter = create_drafter(variant.speculation, target)
            drafters = Drafters(drafter, variant.speculation.method)
            speculator = None if drafter is None else Speculator(drafters, FixedPlanner(variant.drafts))
        hasher = ChainHasher("benchmark", size)
        return LLMEngine(model, pool, config, hasher, speculator=speculator)


def _gained(after: Sequence[int], before: Sequence[int]) -> tuple[int, ...]:
    return tuple(a - b for a, b in zip_longest(after, before, fillvalue=0))
