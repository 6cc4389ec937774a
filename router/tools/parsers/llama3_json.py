"""Llama 3.1 and 3.2: an object with `name` and `parameters`, alone or after `<|python_tag|>`."""

from __future__ import annotations

from router.tools.parsers.base import CallForm

FORM = CallForm(start="<|python_tag|>", bare=True, hidden=True, separator=";")
ARGUMENTS = "parameters"
# The models' own template takes one call in a message.
PARALLEL = False
