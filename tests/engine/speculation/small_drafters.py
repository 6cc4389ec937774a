"""Ways to guess a small target's tokens, well and badly."""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch

from engine.sampling.draws import exponentials, key_tensor
from engine.sampling.keys import Purpose, draw_key
from engine.sampling.rules import TokenRules
from engine.speculation.tree import DraftTree
from tests.engine.speculation.small_target import SmallTarget

DEPTH = 3


def none(
    _target: SmallTarget, _tokens: Sequence[int], _rules: TokenRules, _random: random.Random
) -> DraftTree | None:
    return None


def sometimes(
    target: SmallTarget, tokens: Sequence[int], rules: TokenRules, random_: random.Random
) -> DraftTree | None:
    return random_tree(target, tokens, rules, random_) if random_.random() < 0.5 else None


def random_chain(
    target: SmallTarget, _tokens: Sequence[int], _rules: TokenRules, random_: random.Random
) -> DraftTree:
    return DraftTree.chain(tuple(random_.choices(range(target.vocab_size), k=DEPTH)))


def random_tree(
    target: SmallTarget, _tokens: Sequence[int], _rules: TokenRules, random_: random.Random
) -> DraftTree:
    """Any shape; siblings in any order."""
    token_ids: list[int] = []
    parents: list[int] = []
    for node in range(random_.randrange(1, 6)):
        for token_id in random_.sample(range(target.vocab_size), random_.randrange(1, 4)):
            if node <= len(token_ids) and len(token_ids) < 12:
                token_ids.append(token_id)
                parents.append(node)
    return DraftTree(tuple(token_ids), tuple(parents))


def likeliest_tree(
    target: SmallTarget, tokens: Sequence[int], _rules: TokenRules, _random: random.Random
) -> DraftTree:
    """The two likeliest of each node, two deep."""
    token_ids: list[int] = []
    parents: list[int] = []
    prefixes = [list(tokens)]
    for node in range(3):
        for token_id in target.logits(prefixes[node]).topk(2).indices.tolist():
            token_ids.append(token_id)
            parents.append(node)
            prefixes.append([*prefixes[node], token_id])
    return DraftTree(tuple(token_ids), tuple(parents))


def whole_vocabulary(
    target: SmallTarget, _tokens: Sequence[int], _rules: TokenRules, random_: random.Random
) -> DraftTree:
    """Every token follows the root: one of them must be accepted."""
    token_ids = random_.sample(range(target.vocab_size), target.vocab_size)
    return DraftTree(tuple(token_ids), (0,) * target.vocab_size)


def always_wrong(
    target: SmallTarget, tokens: Sequence[int], _rules: TokenRules, _random: random.Random
) -> DraftTree:
    """The least likely token each time."""
    own = list(tokens)
    for _ in range(DEPTH):
        own.append(int(target.logits(own).argmin()))
    return DraftTree.chain(tuple(own[len(tokens) :]))


def drawn_chain(
    target: SmallTarget, tokens: Sequence[int], random_: random.Random, temperature: float, shift: float
) -> DraftTree:
    """Drawn from the target's logits, changed: `shift` is added to that of token 2."""
    own, distributions = list(tokens), []
    for _ in range(DEPTH):
        logits = target.logits(own) / temperature
        logits[2] += shift
        distributions.append(logits.softmax(dim=-1))
        own += random_.choices(range(target.vocab_size), distributions[-1].tolist())
    return DraftTree.chain(tuple(own[len(tokens) :]), torch.stack(distributions))


def hesitant(
    target: SmallTarget, tokens: Sequence[int], _rules: TokenRules, random_: random.Random
) -> DraftTree:
    return drawn_chain(target, tokens, random_, 3.0, 0.0)


def overconfident(
    target: SmallTarget, tokens: Sequence[int], _rules: TokenRules, random_: random.Random
) -> DraftTree:
    return drawn_chain(target, tokens, random_, 0.3, 4.0)


def equal(
    target: SmallTarget, tokens: Sequence[int], _rules: TokenRules, random_: random.Random
) -> DraftTree:
    """Draws from the target's own distribution at temperature 1."""
    return drawn_chain(target, tokens, random_, 1.0, 0.0)


def coupled(
    target: SmallTarget, tokens: Sequence[int], rules: TokenRules, _random: random.Random
) -> DraftTree:
    """A blurred target, with the noise of the target's own draws."""
    own = list(tokens)
    params = rules.params
    for depth in range(DEPTH):
        key = draw_key(params.seed, params.choice, rules.position + depth, Purpose.TOKEN)
        ids = torch.arange(target.vocab_size)[None]
        noise = exponentials(key_tensor([key], ids.device), ids)[0].log()
        own.append(int((target.logits(own) * 0.7 - noise).argmax()))
    return DraftTree.chain(tuple(own[len(tokens) :]))


ALL = (
    none,
    sometimes,
    random_chain,
    random_tree,
    likeliest_tree,
    whole_vocabulary,
    always_wrong,
    hesitant,
    overconfident,
    equal,
    coupled,
)
