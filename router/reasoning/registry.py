"""Reasoning parsers by name."""

from __future__ import annotations

from router.reasoning.think import END

AUTO, NONE, THINK = "auto", "none", "think"


def reasoning_parser_names() -> tuple[str, ...]:
    """What a deployment may say."""
    return (AUTO, NONE, THINK)


def reads_reasoning(name: str, template: str | None) -> bool:
    """Whether answers are split. "auto": where the model's chat template knows the markers."""
    return name == THINK or (name == AUTO and END in (template or ""))
