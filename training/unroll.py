"""Training-time test (EAGLE-3): the head goes on from its own output, as it does when it drafts.

Slot j of a sequence holds (token j, feature of token j - 1); slot 0 has no feature and is never seen. Step 0
runs all slots with the target's features. A chain starts at an anchor j and goes on from there: its step i
takes token j + i with the head's output of step i - 1, sees the slots 1..j of step 0 and what its own steps
before wrote, and guesses token j + i + 1. That is what a drafting engine sees, for it writes true features
over the slots of accepted tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch.nn import functional

from training.head import Eagle3Head, LayerInput


@dataclass(frozen=True, slots=True)
class Batch:
    """Sequences, packed one behind the other; T tokens in all.

    Attributes:
        token_ids: [T].
        features: [T, 3 H], the target's.
        starts: first row of each sequence, and T.
        anchors: for each sequence the first and the last position from which something is to be guessed; the
            last one is before the sequence's last token.
    """

    token_ids: torch.Tensor
    features: torch.Tensor
    starts: tuple[int, ...]
    anchors: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Step:
    """One step of N chains.

    Attributes:
        hidden: [N, H], the layer's output, un-normed.
        places: [N], row of the batch whose following token is guessed.
    """

    hidden: torch.Tensor
    places: torch.Tensor


@dataclass(slots=True)
class _Chains:
    """The chains of one sequence.

    Attributes:
        key: [kv_heads, slots, dim] of step 0, slots 1 and up.
        value: as key.
        anchors: [n] positions in the sequence.
        own_keys: of the chains' own steps, each [n, kv_heads, dim].
        own_values: as own_keys.
    """

    key: torch.Tensor
    value: torch.Tensor
    anchors: torch.Tensor
    own_keys: list[torch.Tensor]
    own_values: list[torch.Tensor]


def unroll(
    head: Eagle3Head,
    embedding: torch.Tensor,
    batch: Batch,
    num_steps: int,
    kept: torch.Tensor | None = None,
) -> Iterator[Step]:
    """Runs the steps of all chains of a batch.

    Args:
        head: the head.
        embedding: [V, H], the target's.
        batch: sequences of at least two tokens.
        num_steps: at least 1; chains end where their sequence does.
        kept: [anchors in all] bool, chains that go on behind step 0; None for all. Each chain depends on
            itself and step 0 alone, so a random part of them has the same gradient on average.

    Yields:
        Each step, while chains are left. Step 0 has a row for each anchor.
    """
    device = batch.token_ids.device
    total = len(batch.token_ids)
    inside = torch.ones(total, dtype=torch.bool, device=device)
    inside[list(batch.starts[:-1])] = False
    slots = inside.nonzero()[:, 0]
    lengths = [end - start for start, end in zip(batch.starts, batch.starts[1:], strict=False)]
    positions = torch.cat([torch.arange(length, device=device) for length in lengths])
    fused = head.fuse(batch.features.index_select(0, slots - 1))
    embedded = functional.embedding(batch.token_ids.index_select(0, slots), embedding)
    written = head.project(embedded, fused, positions.index_select(0, slots), with_query=False)

    rows, chains, offset = [], [], 0
    for (first, last), start, length in zip(batch.anchors, batch.starts, lengths, strict=False):
        anchors = torch.arange(first, last + 1, device=device)
        rows.append(anchors + start)
        part = slice(offset, offset + length - 1)
        chains.append(
            _Chains(written.key[part].transpose(0, 1), written.value[part].transpose(0, 1), anchors, [], [])
        )
        offset += length - 1
    place = torch.cat(rows)
    # Slot numbers skip one row a sequence.
    of_slot = torch.cumsum(inside, 0) - 1
    hidden = fused.index_select(0, of_slot.index_select(0, place))
    counts = torch.tensor([len(own) for own in rows], device=device)
    ends = torch.tensor(batch.starts[1:], device=device).repeat_interleave(counts)
    for step in range(num_steps):
        if step:
            going = place + 1 < ends - 1
            if step == 1 and kept is not None:
                going &= kept
            if not going.any():
                return
            hidden, place, ends = hidden[going], place[going] + 1, ends[going]
            _keep(chains, going)
        tokens = functional.embedding(batch.token_ids.index_select(0, place), embedding)
        now = head.project(tokens, hidden, positions.index_select(0, place))
        hidden = head.finish(hidden, _attend(now, chains, own=step > 0))
        yield Step(hidden, place)


def _keep(chains: list[_Chains], going: torch.Tensor) -> None:
    offset = 0
    for chain in chains:
        mask = going[offset : offset + len(chain.anchors)]
        offset += len(chain.anchors)
        chain.anchors = chain.anchors[mask]
        chain.own_keys = [key[mask] for key in chain.own_keys]
        chain.own_values = [value[mask] for value in chain.own_values]


def _attend(now: LayerInput, chains: list[_Chains], own: bool) -> torch.Tensor:
    """[N, heads * dim]; with `own`, this step's key and value join those that the chains wrote."""
    assert now.query is not None
    outputs, offset = [], 0
    for chain in chains:
        part = slice(offset, offset + len(chain.anchors))
        offset += len(chain.anchors)
        if own:
            chain.own_keys.append(now.key[part])
            chain.own_values.append(now.value[part])
        if len(chain.anchors):
            outputs.append(_attend_one(now.query[part], chain))
    return torch.cat(outputs)


def _attend_one(query: torch.Tensor, chain: _Chains) -> torch.Tensor:
    n, heads, dim = query.shape
    kv_heads, slots, _ = chain.key.shape
    group = heads // kv_heads
    grouped = query.view(n, kv_heads, group, dim)
    # [kv_heads, n, group, slots]; slot numbers begin at 1, so anchor j sees the first j columns.
    flat = grouped.transpose(0, 1).reshape(kv_heads, n * group, dim)
    scores = (flat @ chain.key.transpose(1, 2)).view(kv_heads, n, group, slots).float()
    unseen = torch.arange(1, slots + 1, device=query.device) > chain.anchors[:, None]
    scores = scores.masked_fill(unseen[None, :, None], -torch.inf)
    if chain.own_keys:
        keys = torch.stack(chain.own_keys, dim=2)
        mine = (grouped.unsqueeze(3) * keys.unsqueeze(2)).sum(-1).transpose(0, 1)
        scores = torch.cat((scores, mine), dim=3)
    weights = torch.softmax(scores * dim**-0.5, dim=3)
    seen = weights[..., :slots].reshape(kv_heads, n * group, slots) @ chain.value
    output = seen.view(kv_heads, n, group, dim).transpose(0, 1).float()
    if chain.own_keys:
        values = torch.stack(chain.own_values, dim=2)
        own_weights = weights[..., slots:].transpose(0, 1)
        output = output + (own_weights.unsqueeze(4) * values.unsqueeze(2)).sum(3)
    return output.reshape(n, heads * dim)
