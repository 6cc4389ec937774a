"""What can be wrong with a model on disk. Messages are for the person who named the model."""

from __future__ import annotations


class ModelError(ValueError):
    """A model cannot be used."""


class UnsupportedModelError(ModelError):
    """The model asks for something that no family here computes; the message names it."""


class CheckpointError(ModelError):
    """Config or weights are missing, corrupt or do not fit together; the message names file and weight."""
