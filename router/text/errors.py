"""The errors of this folder."""

from __future__ import annotations


class ModelFilesError(Exception):
    """A file of the model folder is missing or cannot be used; the message names it and says why."""


class ChatTemplateError(ValueError):
    """A chat cannot be turned into a prompt; the message is fit for the client."""
