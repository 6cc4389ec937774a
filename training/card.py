"""The model card of a head: what it was trained on, how, and what it reaches."""

from __future__ import annotations

from dataclasses import dataclass
from textwrap import fill

from training.acceptance import Acceptance
from training.config import TrainingConfig

_WIDTH = 110


@dataclass(frozen=True, slots=True)
class CardFacts:
    """What a card says beside settings and figures.

    Attributes:
        target: name of the target.
        data: what the prompts are.
        answers: trained on.
        anchors: guessed positions in one pass over them.
        held_out: answers that the figures are of.
        max_new_tokens: of an answer.
        engine: dtype and quantization of the engine that wrote the answers.
        initial: the head that training began with; "" for none.
        draft_vocab_size: tokens that the head can guess.
        tied: whether its LM head is the target's.
        step: steps that are done.
        seconds: of training by the wall, without the writing of answers.
    """

    target: str
    data: str
    answers: int
    anchors: int
    held_out: int
    max_new_tokens: int
    engine: str
    initial: str
    draft_vocab_size: int
    tied: bool
    step: int
    seconds: float


def model_card(facts: CardFacts, config: TrainingConfig, acceptance: Acceptance) -> str:
    """The card, Markdown."""
    positions = range(1, len(acceptance.by_position) + 1)
    rows = [
        ("guess", *map(str, positions)),
        ("---", *("---" for _ in positions)),
        ("greedy, right where those before are", *(f"{share:.2f}" for share in acceptance.by_position)),
        ("temperature 1, chance of acceptance", *(f"{share:.2f}" for share in acceptance.sampled)),
    ]
    table = "\n".join("| " + " | ".join(row) + " |" for row in rows)
    kinds = ", ".join(f"{kind} {tokens:.2f}" for kind, tokens in acceptance.by_kind.items())
    began = f"went on from {facts.initial}" if facts.initial else "began with the target's LM head"
    tied = " and no LM head of its own: it is the target's embedding, of which it has these rows"
    drafts = (
        f"Drafts for {facts.target} and for no other model. The weights are bf16, in the layout of the "
        f"EAGLE-3 authors' checkpoints (https://arxiv.org/abs/2503.01840), with {facts.draft_vocab_size} "
        f"tokens in the draft vocabulary{tied if facts.tied else ''}."
    )
    data = (
        f"{facts.data} The target answered them by itself ({facts.engine}), at most {facts.max_new_tokens} "
        f"tokens each, half of them greedily and half at temperature 1: {facts.answers} answers, "
        f"{facts.anchors} positions to guess."
    )
    if config.copies(not facts.initial):
        began += " and attention that copies"
    training = (
        f"`kvrelay train-draft`, seed {config.seed}, {facts.step} steps of about {config.batch_tokens} "
        f"positions, {facts.seconds / 3600:.2f} hours by the clock; it {began}. "
        f"Training-time test of {config.unroll_steps} steps, the later ones for {config.chain_share:.0%} of "
        f"the positions, each weighing {config.step_decay} of the one before. Soft cross-entropy against the "
        f"target's probabilities of the draft vocabulary. Muon at {config.matrix_rate:g} for matrices, AdamW "
        f"at {config.rate:g} for the rest."
    )
    figures = (
        f"Greedy: **{acceptance.tokens_per_pass:.2f} tokens a pass** of the target ({kinds}). "
        f"Temperature 1: {acceptance.sampled_tokens_per_pass:.2f}."
    )
    count = len(acceptance.by_position)
    measured = f"On {facts.held_out} answers that it was not trained on, chains of {count} guesses:"
    title = f"# EAGLE-3 head for {facts.target}"
    parts = (title, drafts, "## Data", data, "## Training", training, "## Figures", measured, table, figures)
    return "\n\n".join(part if part is table else fill(part, _WIDTH) for part in parts) + "\n"
