"""A model that keeps what it computes: the features of every token that the engine runs through it.

So the target need not read its own answers again, which would cost as much as writing them did.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from engine.models.base import CausalLM
from engine.models.batch import ForwardBatch
from engine.models.features import FeaturePoints, FeatureTap
from engine.ops.buffers import Buffers


@dataclass(slots=True)
class Recording:
    """Of one sequence, in order: a part for each pass.

    Attributes:
        token_ids: that were run.
        features: each [n, width] bf16, of the model's tap.
        log_totals: logarithm of the sum of the exponentiated logits, by position, where they were computed.
    """

    token_ids: list[int] = field(default_factory=list)
    features: list[torch.Tensor] = field(default_factory=list)
    log_totals: dict[int, float] = field(default_factory=dict)


class RecordingModel:
    """Passes on to `model`, and records; implements `engine.models.base.CausalLM`.

    A sequence is known by its first block while it runs, which is its own as long as the engine shares no
    prefixes and no window slides past it, and afterwards by its tokens.

    Args:
        model: computes.
        points: what to keep.

    Attributes:
        config: the model's.
        num_layers_read: layers whose input is kept.
    """

    def __init__(self, model: CausalLM, points: FeaturePoints) -> None:
        self.config = model.config
        self._model = model
        self._points = points
        self.num_layers_read = len(points.entering)
        self._open: dict[int, Recording] = {}
        # Where they lay before: then the model's pass need not be looked at anew.
        self._features: Buffers | None = None

    def forward(self, batch: ForwardBatch, kv: torch.Tensor, tap: FeatureTap | None = None) -> torch.Tensor:
        """As the model's. Raises ValueError where features are asked for: the tap is taken."""
        if tap is not None:
            raise ValueError("this model's features are recorded already")
        if self._features is None:
            self._features = Buffers(kv.dtype, kv.device)
        out, _ = self._features.get(len(batch.token_ids), self._points.width(self.config.hidden_size))
        logits = self._model.forward(batch, kv, FeatureTap(self._points, out))
        kept = out.to("cpu", torch.bfloat16, copy=True)
        totals = dict(zip(batch.logits_rows.tolist(), _log_totals(logits), strict=True))
        token_ids, blocks = batch.token_ids.tolist(), batch.block_tables[0, :, 0].tolist()
        for index, (block, context) in enumerate(zip(blocks, batch.context_lens, strict=True)):
            start, end = batch.query_starts[index], batch.query_starts[index + 1]
            first = context - (end - start)
            if first == 0:
                self._open[block] = Recording()
            recording = self._open[block]
            recording.token_ids += token_ids[start:end]
            # A view would keep the whole step's features.
            recording.features.append(kept[start:end].clone())
            if end - 1 in totals:
                recording.log_totals[context - 1] = totals[end - 1]
        return logits

    def take(self, token_ids: Sequence[int]) -> Recording:
        """Ends the recording of the sequence that ran exactly these tokens. Raises KeyError."""
        for block, recording in self._open.items():
            if recording.token_ids == list(token_ids):
                return self._open.pop(block)
        raise KeyError("no sequence has run these tokens")


def _log_totals(logits: torch.Tensor) -> list[float]:
    """Logarithms of the sums of exponentiated rows; row by row, which stay in the cache."""
    if logits.device.type != "cpu":
        return logits.logsumexp(dim=1).tolist()
    most = logits.amax(dim=1)
    row = torch.empty_like(logits[0]) if len(logits) else logits
    sums = [torch.sub(own, top, out=row).exp_().sum() for own, top in zip(logits, most, strict=True)]
    return (torch.stack(sums).log_() + most).tolist() if sums else []
