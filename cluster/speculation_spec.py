"""The section of the deployment spec about speculative decoding, with keys as other servers have them."""

from __future__ import annotations

import pkgutil
from functools import cache
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

import engine.speculation.drafters
from cluster.spec_section import Section
from engine.speculation.medusa.choices import in_order

AUTO, NONE, MEDUSA = "auto", "none", "medusa"
_MAX_NODES = 64


@cache
def method_names() -> tuple[str, ...]:
    """Draft methods, by their files: importing these would load torch."""
    files = pkgutil.iter_modules(engine.speculation.drafters.__path__)
    return (AUTO, NONE, *sorted(file.name for file in files))


class SpeculationSpec(Section):
    """Whether and how tokens are guessed ahead. Guesses change how fast answers come, never what they say."""

    method: str = Field(
        default=AUTO,
        description="auto (what serves the demo model fastest; none for others), none, or a file name in "
        "engine/speculation/drafters.",
    )
    model: str = Field(default="", description="Folder of the draft model or head, where a method needs one.")
    num_speculative_tokens: int | None = Field(
        default=None, ge=1, lt=_MAX_NODES, description="Most drafts one behind the other; default: 4."
    )
    eagle_topk: int | None = Field(
        default=None,
        ge=1,
        lt=_MAX_NODES,
        description="Children of a node of a tree; 1: chains. Default: 1.",
    )
    num_draft_tokens: int | None = Field(
        default=None, ge=2, le=_MAX_NODES, description="Nodes of a tree, its root included; default: 16."
    )
    prompt_lookup_max: int | None = Field(
        default=None, ge=1, le=64, description="Longest n-gram that ngram and lookup_first match; default: 5."
    )
    prompt_lookup_min: int | None = Field(
        default=None,
        ge=1,
        le=64,
        description="Shortest n-gram that ngram and lookup_first match; default: 2.",
    )
    lookup_first: bool | None = Field(
        default=None,
        description="A method with a model drafts what the text itself says, as ngram does, wherever that is "
        "right as often. Default: false, but auto takes it.",
    )
    draft_p_min: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="Least probability, by an EAGLE head's own estimate, of a draft that is verified; "
        "default: 0.08.",
    )
    medusa_choices: Annotated[
        tuple[Annotated[tuple[int, ...], Field(strict=False)], ...], Field(strict=False)
    ] = Field(
        default=(),
        description="Nodes of a Medusa tree, each a list of ranks: [0, 2] is the second head's third "
        "candidate behind the first head's likeliest. Depth, children and nodes then follow from it. "
        "Default: a tree of their size that is usually good.",
    )
    verification: Literal["coupled", "standard"] = Field(
        default="coupled",
        description="Of requests that bring no seed. coupled: the same noise gives the same answer with any "
        "drafts and none, as it always does for those with a seed. standard: rejection sampling.",
    )
    adaptive: bool = Field(
        default=True, description="Each step drafts as much as pays, down to nothing; false: always all."
    )
    per_request: bool = Field(
        default=True, description="Requests may choose another method that needs no model, or none."
    )

    prefill_history: bool = Field(
        default=True,
        description="Prefill workers run the draft head over contexts and hand over what it makes of them. "
        "false: they have no head, their blocks are smaller, and drafting begins with the answer.",
    )

    @field_validator("method")
    @classmethod
    def _known_method(cls, value: str) -> str:
        if value not in method_names():
            raise ValueError(f"needs one of: {', '.join(method_names())}")
        return value

    @model_validator(mode="after")
    def _model_for_a_method(self) -> SpeculationSpec:
        if self.model and self.method in (AUTO, NONE):
            raise ValueError(f"model is set, but method is {self.method}: name the method that it is for")
        return self

    @model_validator(mode="after")
    def _choices_make_a_tree(self) -> SpeculationSpec:
        if not self.medusa_choices:
            return self
        if self.method != MEDUSA:
            raise ValueError(f"medusa_choices is set, but method is {self.method}: it is for {MEDUSA}")
        in_order(
            self.medusa_choices,
            self.num_speculative_tokens or _MAX_NODES - 1,
            self.eagle_topk or _MAX_NODES - 1,
            (self.num_draft_tokens or _MAX_NODES) - 1,
        )
        return self
