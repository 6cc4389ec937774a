"""From the spec's section on speculation to what engines are told."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from cluster.model_store.store import DEMO, ModelEntry
from cluster.speculation import plan_speculation
from cluster.speculation_spec import SpeculationSpec, method_names
from engine.speculation.registry import methods

OTHER = ModelEntry("other", Path("folder"))
OWN = ModelEntry(DEMO, Path("folder"))


def test_names_are_those_of_the_engine() -> None:
    assert set(method_names()) == {"auto", "none", *methods()}


def test_auto_speculates_for_the_demo_model_alone() -> None:
    assert plan_speculation(SpeculationSpec(), OTHER).method == "none"
    assert plan_speculation(SpeculationSpec(), OWN).method in methods()
    assert plan_speculation(SpeculationSpec(method="none"), OWN).method == "none"


def test_the_demo_model_has_a_head_of_its_own(tmp_path: Path) -> None:
    head = plan_speculation(SpeculationSpec(method="eagle3"), OWN).model
    assert head is not None
    assert (head / "config.json").is_file()
    named = plan_speculation(SpeculationSpec(method="eagle3", model=str(tmp_path)), OWN)
    assert named.model == tmp_path.resolve()
    assert plan_speculation(SpeculationSpec(method="eagle3"), OTHER).model is None


def test_settings_are_handed_on_and_open_ones_left_to_the_engine() -> None:
    spec = SpeculationSpec(method="suffix", num_speculative_tokens=7, eagle_topk=2, adaptive=False)
    planned = plan_speculation(spec, OTHER)
    assert (planned.num_speculative_tokens, planned.eagle_topk, planned.adaptive) == (7, 2, False)
    assert planned.num_draft_tokens == 16


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"method": "medusa2"}, "needs one of"),
        ({"num_speculative_tokens": 0}, "greater than or equal to 1"),
        ({"num_draft_tokens": 65}, "less than or equal to 64"),
        ({"model": "folder"}, "name the method"),
        ({"verification": "loose"}, "'coupled' or 'standard'"),
    ],
)
def test_what_cannot_be_is_refused_by_name(values: dict[str, object], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        SpeculationSpec(**values)  # type: ignore[arg-type]
