"""A model whose answer depends on every token of its context, read back through the block tables.

The KV of a token is (token id, digest of the context up to it); the digest continues from the one that
lies in the pool at the position before. A wrong block table, a block reused too early or a slot written
twice therefore changes every later token. All values are integers below 2**17, exact in fp32. Each layer
keeps KV of its own and sums over its own window of it.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from engine.api import EngineRequest, FinishReason, SamplingParams, StepOutput
from engine.config import EngineConfig
from engine.core import LLMEngine
from engine.models.batch import ForwardBatch
from engine.models.config import ModelConfig, Rope
from engine.models.features import FeatureTap
from engine.models.layer_groups import layer_groups, layers_per_block, places
from engine.sampling.rules import TokenRules
from engine.sampling.sampler import Sampler
from engine.speculation.speculator import Speculator
from prefix_index.hashing import ChainHasher
from tests.support.clock import Clock

VOCAB = 23
EOS = 5
MODULUS = 65521
MAX_MODEL_LEN = 512
# What passes with every look at the clock: everything takes the same time in every run.
LOOK_S = 0.001

MODEL_CONFIG = ModelConfig(
    family="digest",
    vocab_size=VOCAB,
    hidden_size=1,
    intermediate_size=1,
    num_layers=1,
    num_heads=1,
    num_kv_heads=1,
    head_dim=1,
    max_position_embeddings=MAX_MODEL_LEN,
    rms_norm_eps=1e-5,
    attention_scale=1.0,
    windows=(0,),
    ropes=(Rope(2, 10_000.0),),
    tie_word_embeddings=True,
    eos_token_ids=frozenset({EOS}),
    bos_token_id=None,
)


def next_digest(previous: int, token_id: int, position: int) -> int:
    """Digest of a context that ends with `token_id`."""
    return (previous * 31 + token_id * 7 + position + 1) % MODULUS


def kv_of(token_ids: Sequence[int]) -> list[tuple[int, int]]:
    """The KV that the model writes for each token."""
    entries: list[tuple[int, int]] = []
    digest = 0
    for position, token_id in enumerate(token_ids):
        digest = next_digest(digest, token_id, position)
        entries.append((token_id, digest))
    return entries


def logits_of(digest: int, total: int) -> torch.Tensor:
    """[VOCAB] fp32, spread enough that no two are near each other."""
    columns = torch.arange(1, VOCAB + 1, dtype=torch.float64)
    return (4 * torch.sin((digest + 1) * columns * 0.7 + total * (columns + 2) * 1.3)).float()


def total_of(token_ids: Sequence[int], windows: Sequence[int] = (0,)) -> int:
    """What the model's layers sum over their whole context, or over the last `window` tokens of it."""
    total = 0
    for layer, window in enumerate(windows):
        seen = len(token_ids) - window if window else 0
        own = sum((at + 1) * token for at, token in enumerate(token_ids) if at >= seen)
        total += (layer + 1) * own
    return total % MODULUS


def first_seen(window: int, position: int, block_size: int) -> int:
    """The page of the oldest token that the one at a position attends to."""
    return max(0, position + 1 - window) // block_size if window else 0


class DigestModel:
    """See the module. `poison` makes forward raise, and `nan` spoils logits, where a batch has the token.

    It has a layer for each of `windows`, which looks no further back (at least 2 tokens; 0 is all).
    """

    def __init__(
        self, poison: int | None = None, nan: int | None = None, windows: tuple[int, ...] = (0,)
    ) -> None:
        self.config = dataclasses.replace(MODEL_CONFIG, windows=windows, num_layers=len(windows))
        self.windows = windows
        self.groups = layer_groups(windows)
        self.places = places(self.groups)
        self.poison = poison
        self.nan = nan
        self.broken = False
        self.tokens_run = 0
        self.batches: list[ForwardBatch] = []

    def forward(self, batch: ForwardBatch, kv: torch.Tensor, tap: FeatureTap | None = None) -> torch.Tensor:
        """As `CausalLM.forward`, checking what `ForwardBatch` promises."""
        self.batches.append(batch)
        block_size = kv.shape[4]
        tokens = batch.token_ids.tolist()
        positions = batch.positions.tolist()
        all_slots = batch.slots.tolist()
        for slots in all_slots:
            stored = [slot for slot in slots if slot >= block_size]
            assert len(set(stored)) == len(stored), "two tokens share a slot"
        if self.broken or (self.poison is not None and self.poison in tokens):
            raise RuntimeError("poisoned")
        self.tokens_run += len(tokens)
        wanted = batch.logits_rows.tolist()
        rows: dict[int, torch.Tensor] = {}
        for i, context_len in enumerate(batch.context_lens):
            start, end = batch.query_starts[i], batch.query_starts[i + 1]
            tables = batch.block_tables[:, i].tolist()
            used = -(-context_len // block_size)
            for group, table in zip(self.groups, tables, strict=True):
                # The first new token's window begins here.
                first = first_seen(group.window, context_len - (end - start), block_size)
                assert all(table[first:used]), "a context lies in no scratch block"
                assert not any(table[used:]), "the table is padded with scratch"
            before = context_len - (end - start)
            trees = [0] * (end - start) if batch.visible is None else batch.visible[start:end].tolist()
            if not any(trees):
                assert positions[start:end] == list(range(before, context_len))
            for row in range(start, end):
                page, offset = divmod(before + row - start, block_size)
                position = positions[row]
                seen = [
                    before + node
                    for node in range(row - start + 1)
                    if not trees[row - start] or trees[row - start] >> node & 1
                ]
                assert position == before + len(seen) - 1
                seen = [*range(before), *seen]
                digests = totals = 0
                for layer, (group, place) in enumerate(self.places):
                    table, pool = tables[group], kv[:, place]
                    block = all_slots[group][row] // block_size
                    assert block in (0, table[page])
                    assert offset == all_slots[group][row] % block_size
                    digest = self._digest_of(pool, table, seen[-2] if len(seen) > 1 else -1)
                    digest = next_digest(digest, tokens[row], position)
                    pool[block, 0, 0, offset, 0] = tokens[row]
                    pool[block, 1, 0, offset, 0] = digest
                    digests += (layer + 1) * digest
                    if row in wanted:
                        totals += (layer + 1) * self._total(pool, table, seen, self.windows[layer])
                if row in wanted:
                    rows[row] = logits_of(digests % MODULUS, totals % MODULUS)
            spoiled = rows.keys() & set(range(start, end))
            # Only where logits tell of it: what nobody can see in its step is not traced to its sequence.
            if spoiled and self.nan is not None and self.nan in tokens[start:end]:
                for row in spoiled:
                    rows[row][3] = torch.nan
                # As with a real model: what it wrote is no number either.
                for slots in all_slots:
                    for slot in slots[start:end]:
                        kv[slot // block_size, :, :, :, slot % block_size] = torch.nan
        if not wanted:
            return torch.empty(0, VOCAB)
        return torch.stack([rows[row] for row in wanted])

    @staticmethod
    def _digest_of(kv: torch.Tensor, table: list[int], place: int) -> int:
        """From a layer's pool, [blocks, 2, 1, block_size, 1]."""
        if place < 0:
            return 0
        block, offset = divmod(place, kv.shape[3])
        return int(kv[table[block], 1, 0, offset, 0].item())

    @staticmethod
    def _total(kv: torch.Tensor, table: list[int], seen: list[int], window: int) -> int:
        """Over the places `seen`, or the last `window` of them."""
        first = max(0, len(seen) - window) if window else 0
        keys = kv[table[: seen[-1] // kv.shape[3] + 1], 0, 0, :, 0].flatten()[seen[first:]]
        return int((keys.double() * torch.arange(first + 1, len(seen) + 1)).sum().item())


def params(
    max_tokens: int = 8,
    *,
    temperature: float = 0.0,
    seed: int = 0,
    min_tokens: int = 0,
    ignore_eos: bool = True,
    **more: Any,
) -> SamplingParams:
    """Greedy without EOS unless told otherwise."""
    return SamplingParams(
        temperature=temperature,
        top_p=1.0,
        top_k=0,
        seed=seed,
        choice=0,
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        ignore_eos=ignore_eos,
        **more,
    )


def request(
    request_id: str,
    prompt: Sequence[int],
    sampling: SamplingParams | None = None,
    resumed: Sequence[int] = (),
    salt: str = "",
) -> EngineRequest:
    """A request with `params()` unless told otherwise."""
    return EngineRequest(request_id, tuple(prompt), sampling or params(), tuple(resumed), salt)


@functools.lru_cache(maxsize=4096)
def reference(
    wanted: EngineRequest, max_model_len: int = MAX_MODEL_LEN, windows: tuple[int, ...] = (0,)
) -> tuple[tuple[int, ...], FinishReason]:
    """The answer's tokens (resumed ones not repeated) and its end, computed one by one from scratch."""
    context = [*wanted.prompt_token_ids, *wanted.resumed_token_ids]
    sampling = wanted.sampling
    answer: list[int] = []
    while True:
        index = len(wanted.resumed_token_ids) + len(answer)
        digests = sum(layer + 1 for layer in range(len(windows))) * kv_of(context)[-1][1]
        logits = logits_of(digests % MODULUS, total_of(context, windows))
        # Built anew for each token: what the engine keeps up step by step must come to the same.
        given = [*wanted.resumed_token_ids, *answer]
        rules = TokenRules(sampling, wanted.prompt_token_ids, given, frozenset({EOS}), VOCAB)
        token = Sampler().sample(logits[None], [rules]).token_ids[0]
        context.append(token)
        answer.append(token)
        stops = sampling.stop_token_ids | (set() if sampling.ignore_eos else {EOS})
        if token in stops and index >= sampling.min_tokens:
            return tuple(answer), FinishReason.STOP
        if index + 1 >= sampling.max_tokens or len(context) >= max_model_len:
            return tuple(answer), FinishReason.LENGTH


def make_engine(
    num_blocks: int = 64, block_size: int = 4, model: DigestModel | None = None, **settings: float
) -> LLMEngine:
    """An engine over a DigestModel that checks its invariants after each step."""
    engine, _ = make_engine_and_pool(num_blocks, block_size, model, **settings)
    return engine


def make_engine_and_pool(
    num_blocks: int = 64,
    block_size: int = 4,
    model: DigestModel | None = None,
    speculator: Speculator | None = None,
    **settings: float,
) -> tuple[LLMEngine, torch.Tensor]:
    """As `make_engine`, with the pool. `swap_blocks` is the memory to swap to; none by default."""
    model = model or DigestModel()
    shape = (layers_per_block(model.groups), 2, 1, block_size, 1)
    swap_memory_bytes = settings.pop("swap_blocks", 0) * math.prod(shape) * 4
    values = {"check_invariants": True, "swap_memory_bytes": swap_memory_bytes, **settings}
    config = EngineConfig(
        model_dir=Path("unused"),
        block_size=block_size,
        **values,  # type: ignore[arg-type]
    )
    # Not zeroed: whoever reads a slot that was never written gets a number that no token gives.
    pool = torch.full((num_blocks + 1, *shape), 99_999.0)
    hasher = ChainHasher("digest", block_size)
    engine = LLMEngine(model, pool, config, hasher, clock=Clock(step_s=LOOK_S), speculator=speculator)
    return engine, pool


def transfer(
    pool: torch.Tensor,
    block_ids: Sequence[int],
    token_ids: Sequence[int],
    skip: int = 0,
    windows: tuple[int, ...] = (0,),
) -> None:
    """Writes the KV of `token_ids` into a pool, as a read from another worker would; not the first `skip`,
    nor what has no block."""
    block_size = pool.shape[4]
    groups = layer_groups(windows)
    for position, (token_id, digest) in enumerate(kv_of(token_ids)):
        page, offset = divmod(position, block_size)
        for group, place in places(groups):
            block = block_ids[page * len(groups) + group]
            if position >= skip and block:
                pool[block, place, 0, 0, offset, 0] = token_id
                pool[block, place, 1, 0, offset, 0] = digest


def holds(
    pool: torch.Tensor,
    block_ids: Sequence[int],
    token_ids: Sequence[int],
    position: int = 0,
    windows: tuple[int, ...] = (0,),
) -> bool:
    """Whether blocks hold the KV of `token_ids`, as far as the token at `position` attends to it."""
    block_size = pool.shape[4]
    groups = layer_groups(windows)
    expected = torch.tensor(kv_of(token_ids), dtype=pool.dtype).reshape(-1, 2)
    for (group, place), window in zip(places(groups), windows, strict=True):
        found = pool[list(block_ids[group :: len(groups)]), place, :, 0, :, 0]  # [pages, 2, block_size]
        pairs = found.transpose(1, 2).reshape(-1, 2)[: len(token_ids)]
        skip = first_seen(window, position, block_size) * block_size
        if not torch.equal(pairs[skip:], expected[skip:]):
            return False
    return True


class Answers:
    """Collects tokens from step outputs, refusing gaps, repetitions and tokens after the end."""

    def __init__(self) -> None:
        self.tokens: dict[str, list[int]] = {}
        self.ends: dict[str, FinishReason] = {}
        self.first: dict[str, int] = {}

    def take(self, output: StepOutput) -> None:
        """Takes one step's tokens."""
        for token in output.tokens:
            name = token.request_id
            assert name not in self.ends, f"{name} goes on after its end"
            first = self.first.setdefault(name, token.index)
            answer = self.tokens.setdefault(name, [])
            assert token.index == first + len(answer)
            answer.append(token.token_id)
            if token.finish_reason is not None:
                self.ends[name] = token.finish_reason

    def of(self, name: str) -> tuple[tuple[int, ...], FinishReason | None]:
        """Tokens and end of one request, as `reference` gives them."""
        return tuple(self.tokens.get(name, ())), self.ends.get(name)


def run_all(engine: LLMEngine, limit: int = 5000) -> tuple[Answers, list[StepOutput]]:
    """Steps until nothing is left to do."""
    answers = Answers()
    outputs: list[StepOutput] = []
    while engine.has_work():
        output = engine.step()
        answers.take(output)
        outputs.append(output)
        assert len(outputs) < limit, "the engine does not come to an end"
    return answers, outputs
