"""Drafts across the handover: what the prefill worker's head knows, the decode worker's goes on from."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engine.models.registry import read_config
from engine.speculation.config import SpeculationConfig
from kvrelay.v1 import decode_pb2, prefill_pb2
from kvrelay.v1.decode_pb2 import WorkError
from tests.support.aggregated import aggregated_tokens
from tests.support.eagle_heads import HeadShape, flat_config, make_eagle3, write_head
from tests.support.markov import VOCAB, knowing_head, markov_model
from tests.support.pair import Pair, worker_pair
from tests.support.requests import prompt, work_request

DRAFTS = 4
TOKENS = 31


@pytest.fixture(scope="module")
def knowing(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, SpeculationConfig]:
    """A model whose next token follows from its last one, and a head that knows how."""
    folder = tmp_path_factory.mktemp("markov")
    knowing_head(folder / "head", markov_model(folder / "model"))
    method = SpeculationConfig(
        method="eagle3", model=folder / "head", num_speculative_tokens=DRAFTS, adaptive=False
    )
    return folder / "model", method


def few(num_tokens: int, seed: int = 0) -> list[int]:
    """A prompt of the model's few tokens."""
    return [token % VOCAB for token in prompt(num_tokens, seed=seed)]


async def remote(pair: Pair, request: object) -> tuple[list[int], decode_pb2.EndEvent]:
    ticket = (await pair.prefill_link.prefill.Start(prefill_pb2.StartRequest(request=request))).ticket
    reply = pair.router.submit(request, ticket)
    end = await pair.router.end_of(reply)
    return reply.tokens, end


@pytest.mark.parametrize("num_tokens", [1, 15, 16, 17, 150])
async def test_every_draft_is_right_from_the_first_pass_on(
    knowing: tuple[Path, SpeculationConfig], num_tokens: int
) -> None:
    model_dir, speculation = knowing
    request = work_request("r", few(num_tokens), max_tokens=TOKENS, trace=True)
    settings = {"speculation": speculation, "max_model_len": 512}
    async with worker_pair(model_dir, prefill=dict(settings), decode=dict(settings)) as pair:
        tokens, end = await remote(pair, request)
        assert tokens == aggregated_tokens(model_dir, request, max_model_len=512)
        assert end.timeline.transfer_bytes > 0
        # The first token came with the handover, and each pass gives one more than its drafts.
        assert end.timeline.decode_passes == -(-(TOKENS - 1) // (DRAFTS + 1))
        assert end.timeline.accepted_tokens == TOKENS - 1 - end.timeline.decode_passes
        await pair.quiet()


async def test_drafting_goes_on_after_hits_on_both_sides(knowing: tuple[Path, SpeculationConfig]) -> None:
    model_dir, speculation = knowing
    settings = {"speculation": speculation, "max_model_len": 512}
    async with worker_pair(model_dir, prefill=dict(settings), decode=dict(settings)) as pair:
        passes = []
        for name, tokens in (("a", few(100)), ("b", few(100)), ("c", few(100) + few(40, seed=1))):
            _, end = await remote(pair, work_request(name, tokens, max_tokens=TOKENS, trace=True))
            passes.append(end.timeline.decode_passes)
        assert passes == [-(-(TOKENS - 1) // (DRAFTS + 1))] * 3
        await pair.quiet()


@pytest.mark.parametrize("method", ["ngram", "suffix", "eagle3"])
async def test_answers_are_those_without_drafts(model_dir: Path, tmp_path: Path, method: str) -> None:
    """Greedy and drawn, many at once, by a head that knows nothing and by methods that look back."""
    speculation = SpeculationConfig(method=method, adaptive=False)
    if method == "eagle3":
        speculation = replace(speculation, model=random_head(model_dir, tmp_path))
    requests = [
        work_request(f"r{n}", prompt(20 + 13 * n, seed=n), temperature=0.9 * (n % 2), seed=100 + n)
        for n in range(6)
    ]
    async with worker_pair(
        model_dir, prefill={"speculation": speculation}, decode={"speculation": speculation}
    ) as pair:
        answers = await asyncio.gather(*(remote(pair, request) for request in requests))
        assert [tokens for tokens, _ in answers] == [aggregated_tokens(model_dir, r) for r in requests]
        await pair.quiet()


@pytest.mark.parametrize("num_tokens", [1, 15, 16, 33])
async def test_drafting_begins_with_the_answer_where_prefill_has_no_head(
    knowing: tuple[Path, SpeculationConfig], num_tokens: int
) -> None:
    """Its blocks are shorter; what lies behind them in the decode worker's is no entry, and is never read."""
    model_dir, speculation = knowing
    decode = {"speculation": replace(speculation, prefill_history=False), "max_model_len": 512}
    async with worker_pair(model_dir, prefill={"max_model_len": 512}, decode=decode) as pair:
        region = pair.decode_pace.assembly.engine._runner._kv
        layers = read_config(model_dir).num_layers
        region[:, layers:] = torch.nan
        for name in ("first", "again"):
            request = work_request(name, few(num_tokens), max_tokens=TOKENS, trace=True)
            tokens, end = await remote(pair, request)
            assert tokens == aggregated_tokens(model_dir, request, max_model_len=512)
            # The first pass goes without drafts; from then on all are right.
            assert end.timeline.decode_passes == 1 + -(-(TOKENS - 2) // (DRAFTS + 1))
        await pair.quiet()
        size = pair.prefill_link.info.layout.block_bytes
        assert size * (layers + 1) == pair.decode_link.info.layout.block_bytes * layers


async def test_workers_of_other_heads_refuse_each_other(model_dir: Path, tmp_path: Path) -> None:
    speculation = SpeculationConfig(method="eagle3", model=random_head(model_dir, tmp_path))
    request = work_request("r", prompt(30))
    async with worker_pair(model_dir, decode={"speculation": speculation}) as pair:
        _, end = await remote(pair, request)
        assert end.error.kind == WorkError.KIND_IDENTITY_MISMATCH
        assert "draft" in end.error.message


def random_head(model_dir: Path, folder: Path) -> Path:
    """A head of the right sizes that knows nothing."""
    shape = HeadShape(read_config(model_dir), draft_vocab=200)
    return write_head(folder / "head", flat_config(shape), make_eagle3(shape))
