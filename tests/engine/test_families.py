"""Every family against transformers.

The contexts are longer than the windows, and than the lengths that scaled rotary embedding starts from.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from engine.models.loader import load_model
from engine.models.registry import families
from tests.support.paged import PagedModel
from tests.support.reference_model import prompt, reference, reference_greedy, reference_logits
from tests.support.tiny_families import VARIETIES, Variety, tiny_variety

_LENGTHS = (1, 5, 24, 33, 64, 90)
_NEW_TOKENS = 12


class Subject:
    """One variety: our model and theirs, made once."""

    def __init__(self, name: str, folder: Path) -> None:
        self.folder = tiny_variety(folder, name)
        self.variety: Variety = VARIETIES[name]
        self.model = load_model(self.folder, context_length=self.variety.context_length)
        self.reference: PreTrainedModel = reference(self.folder)

    def is_exact(self, length: int) -> bool:
        """Whether transformers computes the same model for contexts of this length."""
        return self.variety.exact_lengths is None or length in self.variety.exact_lengths


@pytest.fixture(scope="module", params=VARIETIES)
def subject(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Subject:
    return Subject(request.param, tmp_path_factory.mktemp("model"))


def test_every_family_has_a_variety() -> None:
    assert {family.model_type for family in families()} == {
        variety.config().model_type for variety in VARIETIES.values()
    }


def test_logits_equal_transformers_whatever_the_chunks(subject: Subject) -> None:
    length = max(length for length in (32, 90) if subject.is_exact(length))
    tokens = prompt(length)
    expected = reference_logits(subject.reference, tokens)
    for chunk in (100, 16, 7, 1):
        paged = PagedModel(subject.model)
        logits = paged.prefill(paged.start(tokens, 0), chunk)
        torch.testing.assert_close(logits, expected, atol=1e-4, rtol=0)


def test_the_reference_attention_agrees(subject: Subject) -> None:
    model = load_model(
        subject.folder, attention_backend="reference", context_length=subject.variety.context_length
    )
    length = max(length for length in (32, 90) if subject.is_exact(length))
    tokens = prompt(length, seed=1)
    paged = PagedModel(model)
    logits = paged.prefill(paged.start(tokens, 0), 32)
    torch.testing.assert_close(logits, reference_logits(subject.reference, tokens), atol=1e-4, rtol=0)


def test_greedy_tokens_equal_transformers_in_a_mixed_batch(subject: Subject) -> None:
    lengths = [length for length in _LENGTHS if subject.is_exact(length)]
    new = max(new for new in (1, 8, _NEW_TOKENS) if all(subject.is_exact(n + new - 1) for n in lengths))
    prompts = [prompt(length, seed=length) for length in lengths]
    expected = [reference_greedy(subject.reference, tokens, new) for tokens in prompts]
    for chunk in (256, 16):
        assert PagedModel(subject.model).greedy(prompts, new, chunk) == expected


def test_bfloat16_is_near_transformers(subject: Subject) -> None:
    length = max(length for length in (32, 90) if subject.is_exact(length))
    tokens = prompt(length, seed=2)
    model = load_model(subject.folder, dtype="bfloat16", context_length=subject.variety.context_length)
    paged = PagedModel(model, dtype=torch.bfloat16)
    logits = paged.prefill(paged.start(tokens, 0), 16)
    expected = reference_logits(reference(subject.folder, torch.bfloat16), tokens)
    exact = reference_logits(subject.reference, tokens)
    # Both round at every layer, each in its own places: neither may be much further from fp32.
    assert (logits - exact).abs().mean() < 1.5 * (expected - exact).abs().mean()
