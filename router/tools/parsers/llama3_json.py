"""Llama 3.1 and 3.2: an object with `name` and `parameters`, alone or after `<|python_tag|>`.

The models' own template takes one call in a message, so a grammar asks for no more; further ones, after a
semicolon, are read where a model writes them.
"""

from __future__ import annotations

from router.tools.parsers.base import CallForm

FORM = CallForm(arguments="parameters", start="<|python_tag|>", bare=True, hidden=True, separator=";")
