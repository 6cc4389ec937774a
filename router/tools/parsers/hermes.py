"""Hermes and Qwen: `<tool_call>`, an object with `name` and `arguments`, `</tool_call>`."""

from __future__ import annotations

from router.tools.parsers.base import CallForm

FORM = CallForm(
    arguments="arguments",
    start="<tool_call>",
    end="</tool_call>",
    parallel=True,
    lead="\n",
    between="\n",
)
