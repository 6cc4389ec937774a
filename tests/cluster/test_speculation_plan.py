"""From the spec's section on speculation to what engines are told."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import ValidationError

from cluster.model_store.store import DEMO, ModelEntry
from cluster.speculation import of_prefill, plan_speculation
from cluster.speculation_spec import SpeculationSpec, method_names
from engine.speculation.medusa.choices import in_order
from engine.speculation.registry import methods

OTHER = ModelEntry("other", Path("folder"))
OWN = ModelEntry(DEMO, Path("folder"))


def test_names_are_those_of_the_engine() -> None:
    assert set(method_names()) == {"auto", "none", *methods()}


def test_auto_speculates_for_the_demo_model_alone() -> None:
    assert plan_speculation(SpeculationSpec(), OTHER).method == "none"
    best = plan_speculation(SpeculationSpec(), OWN)
    assert best.method in methods()
    assert best.lookup_first
    # What it is made of can be chosen one by one.
    assert not plan_speculation(SpeculationSpec(lookup_first=False), OWN).lookup_first
    assert not plan_speculation(SpeculationSpec(method="eagle3"), OWN).lookup_first
    assert plan_speculation(SpeculationSpec(method="none"), OWN).method == "none"


def test_the_demo_model_has_a_head_of_its_own(tmp_path: Path) -> None:
    head = plan_speculation(SpeculationSpec(method="eagle3"), OWN).model
    assert head is not None
    assert (head / "config.json").is_file()
    named = plan_speculation(SpeculationSpec(method="eagle3", model=str(tmp_path)), OWN)
    assert named.model == tmp_path.resolve()
    assert plan_speculation(SpeculationSpec(method="eagle3"), OTHER).model is None


def test_settings_are_handed_on_and_open_ones_left_to_the_engine() -> None:
    spec = SpeculationSpec(
        method="suffix", num_speculative_tokens=7, eagle_topk=2, draft_p_min=0, adaptive=False
    )
    planned = plan_speculation(spec, OTHER)
    assert planned.draft_p_min == 0
    assert (planned.num_speculative_tokens, planned.eagle_topk, planned.adaptive) == (7, 2, False)
    assert planned.num_draft_tokens == 16


def test_medusa_choices_bring_their_bounds() -> None:
    choices = [[0], [1], [0, 0], [0, 3], [0, 0, 1]]
    planned = plan_speculation(SpeculationSpec(method="medusa", model="heads", medusa_choices=choices), OTHER)
    assert planned.medusa_choices == tuple(map(tuple, choices))
    assert (planned.num_speculative_tokens, planned.eagle_topk, planned.num_draft_tokens) == (3, 4, 6)
    bounds = (planned.num_speculative_tokens, planned.eagle_topk, planned.num_draft_tokens - 1)
    assert set(in_order(planned.medusa_choices, *bounds)) == set(planned.medusa_choices)
    # What is said all the same is kept, and heads that are not used are not asked for.
    wider = SpeculationSpec(method="medusa", model="heads", medusa_choices=choices, eagle_topk=8)
    assert plan_speculation(wider, OTHER).eagle_topk == 8
    assert plan_speculation(SpeculationSpec(method="medusa", model="heads"), OTHER).medusa_choices == ()


def test_prefill_workers_have_the_head_unless_the_history_is_not_wanted() -> None:
    planned = plan_speculation(SpeculationSpec(method="eagle3"), OWN)
    assert of_prefill(planned) == planned
    without = plan_speculation(SpeculationSpec(prefill_history=False), OWN)
    assert without.model is not None
    assert of_prefill(without) == replace(without, method="none", model=None, lookup_first=False)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"method": "medusa2"}, "needs one of"),
        ({"num_speculative_tokens": 0}, "greater than or equal to 1"),
        ({"num_draft_tokens": 65}, "less than or equal to 64"),
        ({"model": "folder"}, "name the method"),
        ({"verification": "loose"}, "'coupled' or 'standard'"),
        ({"medusa_choices": [[0]]}, "medusa_choices is set, but method is auto: it is for medusa"),
        ({"method": "medusa", "medusa_choices": [[0], [1, 0]]}, r"has \[1, 0\], but not \[1\] before it"),
        ({"method": "medusa", "medusa_choices": [[0], [0]]}, "names a node twice"),
        ({"method": "medusa", "medusa_choices": [[]]}, "allows 1 to 63 ranks"),
        ({"method": "medusa", "medusa_choices": [["a"]]}, "valid integer"),
        ({"method": "medusa", "medusa_choices": [[0], [2]], "eagle_topk": 2}, "allows ranks below 2"),
        ({"method": "medusa", "medusa_choices": [[0], [1]], "num_draft_tokens": 2}, "there may be 1 beside"),
    ],
)
def test_what_cannot_be_is_refused_by_name(values: dict[str, object], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        SpeculationSpec(**values)  # type: ignore[arg-type]
