"""How a deployment speculates, and what requests may choose, by names that users of other servers know."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

COUPLED = "coupled"
"""The rule of verification by which a seed tells the tokens, whatever is drafted."""


@dataclass(frozen=True, slots=True)
class SpeculationConfig:
    """Settings of one engine's speculation.

    Attributes:
        method: file name in `engine/speculation/drafters/`, or "none".
        model: folder of the draft model or head; None where the method needs none.
        num_speculative_tokens: most drafts one behind the other: the length of a chain, the depth of a tree.
        eagle_topk: children of a tree's node; 1 is a chain.
        num_draft_tokens: nodes of a tree that are verified, the root included, at most 64.
        prompt_lookup_max: longest n-gram that prompt lookup matches.
        prompt_lookup_min: shortest.
        lookup_first: a method with a model drafts what the text itself says, by prompt lookup, wherever that
            is right as often.
        draft_p_min: an EAGLE head leaves out drafts that are less likely to be right, all before them
            included, by its own estimate; 0 leaves out none.
        medusa_choices: nodes of a Medusa tree, each by the rank of the candidate that each head contributes;
            empty for a tree of the other settings' size that is usually good.
        verification: file name in `engine/speculation/verification/` for requests without a seed of their
            own; those with one use "coupled".
        adaptive: whether each step chooses how many drafts pay, up to the limits above.
        per_request: whether requests may choose another method that needs no model, or none.
        prefill_history: whether a context that another worker computed comes with what the drafter makes of
            it. Where not, it may come from workers without a drafter, and drafting begins with the answer.
    """

    method: str = "none"
    model: Path | None = None
    num_speculative_tokens: int = 4
    eagle_topk: int = 1
    num_draft_tokens: int = 16
    prompt_lookup_max: int = 5
    prompt_lookup_min: int = 2
    lookup_first: bool = False
    draft_p_min: float = 0.08
    medusa_choices: tuple[tuple[int, ...], ...] = ()
    verification: str = COUPLED
    adaptive: bool = True
    per_request: bool = True
    prefill_history: bool = True


NO_SPECULATION = SpeculationConfig()
"""A token a step."""


@dataclass(frozen=True, slots=True)
class RequestSpeculation:
    """What one request asks of speculation, of the engine that decodes it.

    Attributes:
        method: a draft method; empty for the deployment's own.
        num_speculative_tokens: most drafts one behind the other, from 1 to 63; None for as many as the
            deployment has, which are the most in any case.
    """

    method: str = ""
    num_speculative_tokens: int | None = None


AS_DEPLOYED = RequestSpeculation()
"""What holds for requests that ask for nothing."""
