"""What can go wrong while a model is fetched, converted or found."""

from __future__ import annotations

from engine.models.errors import ModelError


class ModelStoreError(ModelError):
    """A model cannot be found, fetched or converted; the message says what was tried."""
