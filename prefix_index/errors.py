"""What can go wrong with the index."""

from __future__ import annotations


class IndexUnavailableError(Exception):
    """Redis does not answer. The caller routes by load alone."""


class IndexConfigError(ValueError):
    """The URL is malformed or Redis refuses the credentials in it. The message never holds a password."""
