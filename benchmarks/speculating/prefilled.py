"""Prompts' KV, computed once for all engines that keep it alike: a large batch's take minutes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from engine.api import EngineRequest
from engine.core import LLMEngine


@dataclass(frozen=True, slots=True)
class Prefilled:
    """What an engine made of one request's prompt.

    Attributes:
        request: whose prompt it is, with an id that no other has.
        kv: its blocks, [blocks, layers, 2, kv_heads, block_size, head_dim].
        first_token_id: of the answer.
        carried: what a drafter needs to go on from there.
    """

    request: EngineRequest
    kv: torch.Tensor
    first_token_id: int
    carried: bytes


def prefill(engine: LLMEngine, pool: torch.Tensor, requests: Sequence[EngineRequest]) -> list[Prefilled]:
    """Computes prompts, which the engine keeps as prefixes. Raises RuntimeError where one fails.

    Args:
        engine: with room for all of them at once.
        pool: of the engine.
        requests: any.
    """
    named = [replace(request, request_id=f"prompt {number}") for number, request in enumerate(requests)]
    blocks: dict[str, list[int]] = {request.request_id: [] for request in named}
    first: dict[str, int] = {}
    carried: dict[str, bytes] = {}
    for request in named:
        engine.submit_prefill(request)
    while len(carried) < len(named):
        output = engine.step()
        if output.failures:
            raise RuntimeError(str(output.failures))
        for ready in output.kv_ready:
            blocks[ready.request_id] += ready.new_block_ids
        for token in output.tokens:
            first[token.request_id] = token.token_id
        for done in output.prefills_done:
            carried[done.request_id] = done.carried
    found = []
    for request in named:
        name = request.request_id
        found.append(Prefilled(request, pool[blocks[name]], first[name], carried[name]))
        engine.release(name)
    return found


def take_over(engine: LLMEngine, pool: torch.Tensor, prompts: Sequence[Prefilled]) -> None:
    """Has an engine keep prompts that another one computed, whose pool has the same layers.

    Raises RuntimeError where it has no room.
    """
    for prompt in prompts:
        reservation = engine.reserve(prompt.request)
        if reservation is None:
            raise RuntimeError(f"no room for request {prompt.request.request_id}")
        pool[list(reservation.block_ids)] = prompt.kv
        engine.adopt(prompt.request.request_id, prompt.first_token_id, carried=prompt.carried)
        engine.cancel(prompt.request.request_id)
