"""Serves at once, and faster from some step on."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import torch

from engine.models.base import DraftedLM, SharedParts
from engine.models.batch import ForwardBatch
from engine.models.features import FeatureTap

logger = logging.getLogger(__name__)


class UpgradingModel:
    """A model that is exchanged between two steps for a better one of the same weights.

    Both use the same KV, and their results agree to rounding. While the better one is made, in a thread of
    its own, the weights are in memory twice.

    Args:
        model: serves until then.
        better: makes the other. Where it fails, `model` goes on serving, and the log says why.
    """

    def __init__(self, model: DraftedLM, better: Callable[[], DraftedLM]) -> None:
        self.config = model.config
        self._model = model
        self._better: DraftedLM | None = None
        # A process that ends does not wait for what it will not use.
        self._thread = threading.Thread(target=self._make, args=(better,), name="upgrade", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Until the attempt is over; the next step uses what came of it."""
        self._thread.join()

    def shared(self) -> SharedParts:
        """Of the model that is going to stay: waits for the attempt to be over."""
        self.wait()
        return (self._better or self._model).shared()

    def forward(self, batch: ForwardBatch, kv: torch.Tensor, tap: FeatureTap | None = None) -> torch.Tensor:
        """As `CausalLM.forward`."""
        if self._better is not None:
            self._model, self._better = self._better, None
        return self._model.forward(batch, kv, tap)

    def _make(self, better: Callable[[], DraftedLM]) -> None:
        try:
            self._better = better()
            logger.info("the faster model is ready")
        # The thread's last net. A failed build is only the likeliest cause, and whatever it is, the model at
        # hand goes on serving: an error that left the thread would be told to nobody who reads the log.
        except Exception:
            logger.exception("the faster model could not be made")
