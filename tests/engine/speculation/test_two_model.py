"""Two-model drafting: guesses by the definition, how the draft model keeps up, and what it gives up."""

from __future__ import annotations

import json
import random
import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch

from engine.api import EngineRequest, GrammarKind, GrammarSpec, SamplingParams
from engine.config import EngineConfig
from engine.grammar.guidance import GuidanceCompiler
from engine.kv.storage import allocate_pool
from engine.models.base import CausalLM, DraftedLM
from engine.models.batch import ForwardBatch
from engine.models.errors import ModelError
from engine.models.features import FeatureTap
from engine.models.loader import load_model
from engine.sampling.rules import TokenRules
from engine.sampling.sampler import Sampler
from engine.sequence import Sequence as EngineSequence
from engine.speculation.base import Target, TargetPass
from engine.speculation.config import SpeculationConfig
from engine.speculation.registry import create_drafter
from engine.speculation.two_model.cache import DraftCache
from engine.speculation.two_model.drafter import DraftLimits, TwoModelDrafter
from engine.speculation.two_model.loading import check_vocabularies
from engine.speculation.verification.base import Bounds
from tests.support.drafting import new_sequence, whole_pass
from tests.support.speculation import run_alone, speculating
from tests.support.tiny_families import tiny_variety
from tests.support.tiny_models import IM_END, VOCAB_SIZE, tiny_llama

BLOCK = 4
LIMITS = DraftLimits(drafts=4, portion=100, context=200, vocab_size=VOCAB_SIZE, tells=False)
NOTHING = TargetPass((), None)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return tiny_llama(tmp_path_factory.mktemp("draft"), seed=1, layers=2)


@pytest.fixture(scope="module")
def model(folder: Path) -> DraftedLM:
    return load_model(folder, ops="torch", attention_backend="sdpa")


@dataclass(slots=True)
class Counted:
    """The model, and how many tokens each of its passes had."""

    model: CausalLM
    passes: list[int] = field(default_factory=list)

    @property
    def config(self) -> object:
        return self.model.config

    def forward(self, batch: ForwardBatch, kv: torch.Tensor, tap: FeatureTap | None = None) -> torch.Tensor:
        self.passes.append(len(batch.token_ids))
        return self.model.forward(batch, kv, tap)


@dataclass(slots=True)
class Rig:
    """A drafter, its cache and the tokens of its passes."""

    drafter: TwoModelDrafter
    cache: DraftCache
    passes: list[int]

    def propose(self, *sequences: EngineSequence, count: int = 4) -> list[tuple[int, ...]]:
        """Drafts of a step, empty for none."""
        trees = self.drafter.propose(sequences, [count] * len(sequences))
        self.drafter.extend(NOTHING)
        self.cache.check_invariants()
        return [() if tree is None else tree.token_ids for tree in trees]


def make(model: DraftedLM, limits: DraftLimits = LIMITS, num_blocks: int = 100, **bounds: object) -> Rig:
    cache = DraftCache(model.config, num_blocks, BLOCK, torch.float32, "cpu")
    counted = Counted(model)
    own = Bounds(**{"eos_token_ids": frozenset(), "max_model_len": 1000, **bounds})  # type: ignore[arg-type]
    return Rig(TwoModelDrafter(counted, cache, Sampler(), own, limits), cache, counted.passes)


def logits_after(model: CausalLM, tokens: list[int]) -> torch.Tensor:
    """[vocab], of one pass over all tokens."""
    batch, kv = whole_pass(model, tokens, torch.tensor([len(tokens) - 1]))
    return model.forward(batch, kv)[0]


def expected(model: CausalLM, sequence: EngineSequence, count: int) -> tuple[list[int], torch.Tensor]:
    """A chain and what each draft is drawn from, by whole passes and rules of their own."""
    tokens, drafts, told = list(sequence.token_ids), [], []
    prompt, answer = tokens[: sequence.num_prompt], tokens[sequence.num_prompt :]
    rules = TokenRules(sequence.rules.params, prompt, answer, frozenset(), VOCAB_SIZE)
    sampler = Sampler()
    for _ in range(count):
        logits = logits_after(model, [*tokens, *drafts])[None]
        drafts.append(sampler.sample(logits, [rules]).token_ids[0])
        told.append(sampler.distributions(logits, [rules]).probabilities[0])
        rules.advance(drafts[-1])
    return drafts, torch.stack(told)


def go_on(sequence: EngineSequence, tokens: list[int]) -> None:
    for token_id in tokens:
        sequence.rules.advance(token_id)
        sequence.token_ids.append(token_id)


def text(length: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(256), k=length)


@pytest.mark.parametrize(("variety", "tells"), [("llama", False), ("llama", True), ("gemma3", False)])
def test_guesses_are_those_of_the_definition(
    model: DraftedLM, tmp_path: Path, variety: str, tells: bool
) -> None:
    """Sequences of several lengths, greedy and drawn, of whose drafts any number is right."""
    if variety != "llama":
        # Its layers are of two groups, with a window and without.
        model = load_model(tiny_variety(tmp_path, variety), ops="torch", attention_backend="sdpa")
    rig = make(model, replace(LIMITS, tells=tells))
    sequences = [
        new_sequence(text(length, seed), VOCAB_SIZE, temperature, seed)
        for seed, (length, temperature) in enumerate([(9, 0.0), (4, 0.8), (1, 0.5), (17, 0.0)])
    ]
    draw = random.Random(0)
    for step in range(12):
        counts = [draw.randint(1, 6) for _ in sequences]
        positions = [sequence.rules.position for sequence in sequences]
        trees = rig.drafter.propose(sequences, counts)
        assert [sequence.rules.position for sequence in sequences] == positions, "rules are as before"
        for sequence, tree, count in zip(sequences, trees, counts, strict=True):
            wanted, told = expected(model, sequence, min(count, 4))
            assert tree is not None
            assert list(tree.token_ids) == wanted, f"step {step}"
            if tells and not sequence.rules.greedy:
                assert tree.distributions is not None
                torch.testing.assert_close(tree.distributions, told)
            else:
                assert tree.distributions is None
            go_on(sequence, [*tree.token_ids[: draw.randint(0, 4)], draw.randrange(256)])
        rig.drafter.extend(NOTHING)
        rig.cache.check_invariants()
    # What was right is not computed again: after the first step, all sequences lack at most 2 tokens.
    assert max(rig.passes[1:]) <= 2 * len(sequences)


def test_a_long_context_is_computed_in_portions_beside_sequences_that_draft(model: DraftedLM) -> None:
    rig = make(model, replace(LIMITS, portion=8))
    long, other = new_sequence(text(40), VOCAB_SIZE), new_sequence(text(3), VOCAB_SIZE)
    steps = 0
    while not (found := rig.propose(long, other))[0]:
        steps += 1
        assert found[1] == tuple(expected(model, other, 4)[0])
        go_on(other, [1, 2])
    assert steps == 4
    assert max(rig.passes) == 8 + 3
    assert found[0] == tuple(expected(model, long, 4)[0])


def test_a_sequence_pauses_where_there_are_no_blocks_and_none_is_lost(model: DraftedLM) -> None:
    rig = make(model, num_blocks=7)
    first, second = new_sequence(text(12), VOCAB_SIZE), new_sequence(text(5, 1), VOCAB_SIZE)
    assert all(rig.propose(first, second)), "4 blocks and 2"
    go_on(first, [1, 2, 3, 4])
    assert all(rig.propose(first, second)), "5 and 2"
    go_on(second, [1, 2, 3, 4])
    drafts = rig.propose(first, second)
    assert drafts[0]
    assert not drafts[1], "it gives up what it had"
    assert rig.cache.num_free == 2
    assert not rig.propose(first, second)[1]
    first.forget_progress()
    assert rig.cache.num_free == 7, "a sequence that loses its blocks loses these, too"
    assert rig.propose(second) == [tuple(expected(model, second, 4)[0])]
    del first, second
    assert rig.cache.num_free == 7


def test_who_begins_leaves_room_for_those_that_draft(model: DraftedLM) -> None:
    rig = make(model, num_blocks=7)
    first, second = new_sequence(text(12), VOCAB_SIZE), new_sequence(text(9, 1), VOCAB_SIZE)
    drafts = rig.propose(first, second)
    assert drafts[0]
    assert not drafts[1], "3 blocks are free, and one of them is what the first one needs next"


def test_drafts_end_with_the_answer_and_with_the_models_context(model: DraftedLM) -> None:
    sequence = new_sequence(text(9), VOCAB_SIZE)
    wanted = expected(model, sequence, 4)[0]
    rig = make(model, eos_token_ids=frozenset({wanted[1]}))
    assert rig.propose(sequence) == [tuple(wanted[:2])]
    rig = make(model, max_model_len=12)
    assert rig.propose(new_sequence(text(9), VOCAB_SIZE)) == [tuple(wanted[:3])]
    rig = make(model, replace(LIMITS, context=10))
    sequence = new_sequence(text(9), VOCAB_SIZE)
    assert rig.propose(sequence) == [tuple(wanted[:2])]
    go_on(sequence, wanted[:2])
    assert rig.propose(sequence) == [()]


def test_vocabularies_may_be_padded(model: DraftedLM) -> None:
    larger = make(model, replace(LIMITS, vocab_size=VOCAB_SIZE + 5, tells=True))
    sequence = new_sequence([*text(8), VOCAB_SIZE + 3, 7], VOCAB_SIZE + 5, temperature=0.9)
    (tree,) = larger.drafter.propose([sequence], [3])
    assert tree is not None
    assert tree.distributions is not None
    assert tree.distributions.shape == (3, VOCAB_SIZE + 5)
    assert not tree.distributions[:, VOCAB_SIZE:].any()
    smaller = make(model, replace(LIMITS, vocab_size=200))
    for seed in range(8):
        (drafts,) = smaller.propose(new_sequence(text(8, seed), 200, temperature=2.0, seed=seed))
        assert max(drafts) < 200


def test_drafts_follow_the_grammar(model: DraftedLM, folder: Path) -> None:
    grammars = GuidanceCompiler(folder / "tokenizer.json", VOCAB_SIZE, frozenset({IM_END}))
    spec = GrammarSpec(GrammarKind.REGEX, "(yes|no)!")
    params = SamplingParams(
        temperature=0.0, top_p=1.0, top_k=0, seed=0, choice=0, max_tokens=50, grammar=spec
    )
    sequence = EngineSequence(EngineRequest("r", (1, 2, 3), params), 0, False, 0.0)
    matcher = grammars.compile(spec).start()
    sequence.rules = TokenRules(params, (1, 2, 3), (), frozenset({IM_END}), VOCAB_SIZE, matcher)
    cache = DraftCache(model.config, 20, BLOCK, torch.float32, "cpu")
    bounds = Bounds(frozenset({IM_END}), 1000)
    drafter = TwoModelDrafter(model, cache, Sampler(grammars), bounds, replace(LIMITS, drafts=8))
    (tree,) = drafter.propose([sequence], [8])
    assert tree is not None
    answer = [token for token in tree.token_ids if token != IM_END]
    assert bytes(answer) in (b"yes!", b"no!")
    # The matcher is where it was.
    go_on(sequence, list(b"no!"))


class _Broken:
    """A model whose logits are not numbers, and its KV neither."""

    def __init__(self, model: CausalLM) -> None:
        self.config = model.config

    def forward(self, batch: ForwardBatch, kv: torch.Tensor, tap: FeatureTap | None = None) -> torch.Tensor:
        kv.flatten(0, 0)[batch.block_tables[0].flatten()] = torch.nan
        return torch.full((len(batch.logits_rows), self.config.vocab_size), torch.nan)


def test_what_is_not_a_number_is_kept_from_other_sequences(model: DraftedLM) -> None:
    cache = DraftCache(model.config, 20, BLOCK, torch.float32, "cpu")
    drafter = TwoModelDrafter(_Broken(model), cache, Sampler(), Bounds(frozenset(), 1000), LIMITS)
    sequence = new_sequence(text(5), VOCAB_SIZE)
    assert list(drafter.propose([sequence], [4])) == [None]
    assert cache.num_free == 20
    assert not cache.kv.isnan().any()
    drafter.extend(NOTHING)
    assert list(drafter.propose([sequence], [4])) == [None]
    assert cache.num_free == 20, "it is not tried again"


def test_a_model_guesses_itself_in_the_engine(folder: Path, model: DraftedLM) -> None:
    """Greedy and with a seed: each pass gives all drafts, and one more."""
    config = SpeculationConfig("draft_model", folder, num_speculative_tokens=4)
    for seed, temperature in enumerate((0.0, 0.7)):
        settings = {"ops": "torch", "attention_backend": "sdpa"}
        engine, _ = speculating(model, config, 4, model_dir=folder, **settings)
        params = SamplingParams(
            temperature=temperature, top_p=0.95, top_k=0, seed=seed, choice=0, max_tokens=41, ignore_eos=True
        )
        tokens, passes = run_alone(engine, EngineRequest("r", tuple(text(20)), params))
        assert len(tokens) == 41
        assert passes == 1 + 8


def target_of(model: DraftedLM, folder: Path) -> Target:
    settings = EngineConfig(folder, ops="torch", attention_backend="sdpa")
    return Target(model, allocate_pool(model.config, 4, 16, torch.float32), settings, 64)


def test_settings_are_checked(model: DraftedLM, folder: Path) -> None:
    config = SpeculationConfig("draft_model", folder)
    with pytest.raises(ValueError, match="model must name the folder of a draft model for method 'draft_mod"):
        create_drafter(replace(config, model=None), target_of(model, folder))
    with pytest.raises(
        ValueError, match="eagle_topk is 2, but must be 1: method 'draft_model' drafts chains"
    ):
        create_drafter(replace(config, eagle_topk=2), target_of(model, folder))
    with pytest.raises(ModelError, match="folder nowhere does not exist"):
        create_drafter(replace(config, model=Path("nowhere")), target_of(model, folder))


def test_another_vocabulary_is_refused(folder: Path, tmp_path: Path) -> None:
    def changed(name: str, old: str, new: str) -> Path:
        other = tmp_path / name
        other.mkdir()
        tokenizer = (folder / "tokenizer.json").read_text()
        assert old in tokenizer
        (other / "tokenizer.json").write_text(tokenizer.replace(old, new))
        return other

    same = tmp_path / "same"
    same.mkdir()
    shutil.copy(folder / "tokenizer.json", same)
    check_vocabularies(folder, same)
    with pytest.raises(
        ModelError, match=r"token 257 is '<end>' where the model has '<\|im_end\|>'; name a sm"
    ):
        check_vocabularies(folder, changed("other", "<|im_end|>", "<end>"))
    smaller = json.loads((folder / "tokenizer.json").read_text())
    smaller["added_tokens"].pop()
    (same / "tokenizer.json").write_text(json.dumps(smaller))
    with pytest.raises(ModelError, match="258 tokens where the model has 259"):
        check_vocabularies(folder, same)
    (same / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelError, match="cannot be read"):
        check_vocabularies(folder, same)
    with pytest.raises(ModelError, match=r"nowhere/tokenizer\.json is missing"):
        check_vocabularies(folder, tmp_path / "nowhere")
