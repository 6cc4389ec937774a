"""Errors that the command line shows as they are."""

from __future__ import annotations


class SupervisorError(Exception):
    """The deployment cannot be brought up; the message says which part and why."""
