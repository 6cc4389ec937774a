"""Checks of a deployment's settings that several draft methods share."""

from __future__ import annotations

from engine.speculation.config import SpeculationConfig
from engine.speculation.tree import MAX_NODES


def check_range(name: str, value: int, least: int, greatest: int) -> None:
    """Raises ValueError, naming the setting and what it may be."""
    if not least <= value <= greatest:
        raise ValueError(f"{name} is {value}, but must be from {least} to {greatest}")


def check_share(name: str, value: float) -> None:
    """Raises ValueError, naming the setting, where it is not from 0 to 1."""
    if not 0.0 <= value <= 1.0:
        raise ValueError(f"{name} is {value}, but must be from 0 to 1")


def check_depth(config: SpeculationConfig) -> None:
    """Raises ValueError where there is no such chain."""
    check_range("num_speculative_tokens", config.num_speculative_tokens, 1, MAX_NODES - 1)


def check_chain(config: SpeculationConfig) -> None:
    """As `check_depth`, for a method that drafts chains alone."""
    check_depth(config)
    if config.eagle_topk != 1:
        raise ValueError(
            f"eagle_topk is {config.eagle_topk}, but must be 1: method {config.method!r} drafts chains"
        )


def check_tree(config: SpeculationConfig) -> None:
    """As `check_depth`, for a method that drafts trees or, where `eagle_topk` is 1, chains."""
    check_depth(config)
    check_range("eagle_topk", config.eagle_topk, 1, MAX_NODES - 1)
    check_range("num_draft_tokens", config.num_draft_tokens, 2, MAX_NODES)


def lookup_range(config: SpeculationConfig) -> tuple[int, int]:
    """Shortest and longest n-gram of prompt lookup; ValueError where there is no such range."""
    check_range("prompt_lookup_max", config.prompt_lookup_max, 1, 64)
    check_range("prompt_lookup_min", config.prompt_lookup_min, 1, config.prompt_lookup_max)
    return config.prompt_lookup_min, config.prompt_lookup_max


def max_drafts(config: SpeculationConfig) -> int:
    """Most drafts of one tree, of a method that drafts trees."""
    return config.num_speculative_tokens if config.eagle_topk == 1 else config.num_draft_tokens - 1


def refuse_model(config: SpeculationConfig) -> None:
    """Raises ValueError where a model is named that the method does not have."""
    if config.model is not None:
        raise ValueError(f"model is {config.model}, but method {config.method!r} needs none")


def refuse_carried(carried: bytes) -> None:
    """Raises ValueError where a drafter that carries nothing over is given something."""
    if carried:
        raise ValueError(f"{len(carried)} bytes came for a drafter that carries nothing over")
