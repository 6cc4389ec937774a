"""A synthetic deployment on a virtual clock: what a planner makes of a machine, a drafter and its texts."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from heapq import heappop, heappush
from itertools import accumulate
from operator import mul

from engine.api import EngineRequest, SamplingParams
from engine.sequence import Sequence
from engine.speculation.operating_point import AdaptivePlanner
from engine.speculation.planner import DraftOutcome, DraftPlanner, FixedPlanner, PassCost
from engine.speculation.tree import DraftTree

ANSWER = 160
"""Tokens of an answer."""


BAR = 0.97
"""Of the speed of no drafts, and of the best fixed number of them."""


def flat(tokens: int) -> float:
    """Bound by memory traffic: many tokens cost hardly more than one."""
    return 0.020 + 0.0002 * tokens


def linear(tokens: int) -> float:
    """Bound by arithmetic: each token costs the same."""
    return 0.002 + 0.006 * tokens


def bent(tokens: int) -> float:
    """Bound by memory traffic, then by arithmetic: what CPUs do."""
    return max(0.020 + 0.0006 * tokens, 0.0022 * tokens)


def rising(tokens: int) -> float:
    """Bound by both: each token costs something."""
    return 0.018 + 0.0008 * tokens


def stepped(tokens: int) -> float:
    """Kernels with tiles of 8 rows."""
    return 0.014 + 0.006 * -(-tokens // 8)


@cache
def best_tree(chance: float, drafts: int) -> tuple[tuple[tuple[int, ...], ...], tuple[float, ...]]:
    """The likeliest paths of five levels, where the child of rank r is right with chance * (1 - chance)^r.

    Returns the paths, the likeliest first, and their chances.
    """
    heap = [(-chance, (0,))]
    paths: list[tuple[int, ...]] = []
    chances: list[float] = []
    while len(paths) < drafts:
        weight, path = heappop(heap)
        paths.append(path)
        chances.append(-weight)
        heappush(heap, (weight * (1 - chance), (*path[:-1], path[-1] + 1)))
        if len(path) < 5:
            heappush(heap, (weight * chance, (*path, 0)))
    return tuple(paths), tuple(chances)


@dataclass(frozen=True)
class Text:
    """What a drafter makes of one answer.

    Attributes:
        right: probability that a draft is right, by its position in the answer.
        found: probability that there are drafts at all, for stretches of eight tokens.
        decay: factor on `right` for each further draft of a pass.
        least: the drafter knows `right`, and ends a chain that is right with less probability.
        says: of a draft that is right with some probability, all before it too, how sure the drafter is; None
            where it does not tell.
    """

    right: Callable[[int], float]
    found: float = 1.0
    decay: float = 1.0
    least: float = 0.0
    says: Callable[[float], float] | None = None

    def drafts(self, place: int, count: int, *, branching: bool = False) -> DraftTree | None:
        """So many drafts from a place of the answer on; a token is its rank among those that may follow."""
        if not count:
            return None
        if branching:
            paths, chances = best_tree(self.chance(place), count)
            nodes = {path: node for node, path in enumerate(((), *paths))}
            token_ids = tuple(path[-1] for path in paths)
            parents = tuple(nodes[path[:-1]] for path in paths)
        else:
            token_ids, parents = (0,) * count, tuple(range(count))
            each = (self.right(place + ahead) * self.decay**ahead for ahead in range(count))
            chances = tuple(accumulate(each, mul))
        if self.says is None:
            return DraftTree(token_ids, parents)
        sure = [1.0]
        for parent, chance in zip(parents, chances, strict=True):
            sure.append(min(sure[parent], self.says(chance)))
        return DraftTree(token_ids, parents, confidence=tuple(sure[1:]))

    def chance(self, place: int) -> float:
        """That the likeliest token of all is right, for trees."""
        return round(min(max(self.right(place), 0.05), 0.95), 2)

    def path(self, tree: DraftTree, luck: list[float], place: int, *, branching: bool = False) -> list[int]:
        """Nodes that are right where an answer's next token is number `place`; the same for every planner."""
        path: list[int] = []
        chance = self.chance(place)
        while (ahead := place + len(path)) < ANSWER:
            if branching:
                rank = int(math.log(1 - luck[ahead] * 0.999999) / math.log(1 - chance))
            else:
                rank = int(luck[ahead] >= self.right(ahead) * self.decay ** len(path))
            node = tree.child(path[-1] if path else 0, rank)
            if node is None:
                break
            path.append(node)
        return path

    def likely(self, place: int, most: int) -> int:
        """Of so many drafts from a place of the answer on those that are likely enough."""
        chance = 1.0
        for count in range(most if self.least else 0):
            chance *= self.right(place + count) * self.decay**count
            if chance < self.least:
                return count
        return most


@dataclass(frozen=True)
class World:
    """A deployment.

    Attributes:
        batch: sequences that decode at a time, by the tokens that were made before.
        cost: seconds of the target's pass by tokens, without contexts.
        text: of the n-th request.
        most: most drafts of one request.
        draft_s: seconds for each draft of the longest chain.
        idle_s: seconds of a drafter that is asked nothing.
        left_s: what each step without drafts leaves for the drafter to do in the next one with some.
        per_sequence_s: what a pass takes longer for each sequence, which calibration does not see.
        per_node_s: and for each token: verification.
        noise: standard deviation of a pass's time, as a share of it.
        hiccups: share of passes that take five times as long.
        tree: drafts are trees whose nodes are spread over five levels.
    """

    cost: Callable[[int], float]
    text: Callable[[int], Text]
    batch: Callable[[int], int]
    most: int = 6
    draft_s: float = 0.0015
    idle_s: float = 0.0
    left_s: float = 0.0
    per_sequence_s: float = 0.0003
    per_node_s: float = 0.0001
    noise: float = 0.04
    hiccups: float = 0.005
    tree: bool = False

    @property
    def calibration(self) -> list[tuple[int, float]]:
        """What would be measured before anything is served: 10 % off."""
        return [(tokens, 1.1 * self.cost(tokens)) for tokens in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)]


@dataclass
class Result:
    """What came of a run.

    Attributes:
        tokens: that were made.
        seconds: on the virtual clock.
        counts: drafts that were asked for in each step, one for each sequence.
    """

    tokens: int = 0
    seconds: float = 0.0
    counts: list[list[int]] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Tokens a second."""
        return self.tokens / self.seconds


def run(world: World, planner: DraftPlanner, answers: int, seed: int = 0) -> Result:
    """Serves until so many answers' tokens have come."""
    clock = random.Random(f"clock {seed}")
    result = Result()
    alive: list[tuple[Sequence, Text, list[float], list[float]]] = []
    arrivals = left = 0
    while result.tokens < answers * ANSWER:
        wanted_batch = world.batch(result.tokens)
        while len(alive) < wanted_batch:
            texts = random.Random(f"text {seed} {arrivals}")
            sampling = SamplingParams(0.0, 1.0, 0, 0, 0, max_tokens=ANSWER)
            sequence = Sequence(EngineRequest(str(arrivals), (1,), sampling), arrivals, False, 0.0)
            # Answers do not all begin at once.
            sequence.token_ids += [0] * (1 + texts.randrange(ANSWER // 2) * (not result.counts))
            luck = [texts.random() for _ in range(ANSWER)]
            alive.append((sequence, world.text(arrivals), luck, [texts.random() for _ in range(ANSWER)]))
            arrivals += 1
        batch = alive[:wanted_batch]
        sequences = [sequence for sequence, *_ in batch]
        asked = list(planner.wanted(sequences))
        assert all(0 <= count <= world.most for count in asked)
        drafted = [
            text.likely(sequence.next_index, count) if finds[sequence.next_index // 8] < text.found else 0
            for count, (sequence, text, _, finds) in zip(asked, batch, strict=True)
        ]
        trees = [
            text.drafts(sequence.next_index, count, branching=world.tree)
            for count, (sequence, text, *_) in zip(drafted, batch, strict=True)
        ]
        kept = list(planner.kept(sequences, asked, trees))
        assert all(0 <= count <= there for count, there in zip(kept, drafted, strict=True))
        outcomes = []
        for sequence, (_, text, luck, _), room, tree, count in zip(
            sequences, batch, asked, trees, kept, strict=True
        ):
            verified = None if tree is None else tree.first(count)
            place = sequence.next_index
            path = text.path(verified, luck, place, branching=world.tree) if verified else []
            new = min(len(path) + 1, ANSWER - place)
            outcomes.append(DraftOutcome(sequence, room, verified, path))
            sequence.token_ids += [0] * new
            result.tokens += new
        nodes = len(batch) + sum(kept)
        slow = (1 + world.noise * clock.gauss(0, 1)) * (5 if clock.random() < world.hiccups else 1)
        target_s = world.cost(nodes) + len(batch) * world.per_sequence_s + nodes * world.per_node_s
        # The draft that is too unlikely was made, too.
        longest = max(min(room, count + 1) for room, count in zip(asked, drafted, strict=True))
        levels = min(5, longest) if world.tree else longest
        catching_up_s, left = (left * world.left_s, 0) if longest else (0.0, left + 1)
        cost = PassCost(
            decodes=len(batch),
            nodes=nodes,
            prompt_tokens=0,
            target_s=target_s * slow,
            draft_s=(world.idle_s + levels * world.draft_s + catching_up_s)
            * (1 + world.noise * clock.gauss(0, 1)),
        )
        planner.observe(cost, outcomes)
        result.seconds += cost.target_s + cost.draft_s
        result.counts.append(asked)
        alive = [entry for entry in alive if entry[0].next_index < ANSWER]
    return result


def planner_of(world: World) -> AdaptivePlanner:
    return AdaptivePlanner(world.calibration, world.most, branching=world.tree)


def require_fast(world: World, answers: int, counts: range | tuple[int, ...] | None = None) -> Result:
    """The bars; returns the adaptive run."""
    tried = range(world.most + 1) if counts is None else counts
    fixed = {count: run(world, FixedPlanner(count), answers).rate for count in tried}
    adaptive = run(world, planner_of(world), answers)
    best = max(fixed, key=lambda count: fixed[count])
    shares = {0: adaptive.rate / fixed[0], best: adaptive.rate / fixed[best]}
    assert min(shares.values()) >= BAR, f"share of the speed with so many drafts: {shares}"
    return adaptive


def answers_for(batch: int) -> int:
    """Enough of them that beginnings do not count."""
    return 16 + 4 * batch


def unlike(number: int) -> list[float]:
    """Chances of an answer's drafts, by position: from nearly certain to nearly none."""
    return random.Random(number).choices((0.97, 0.85, 0.5, 0.25, 0.1), k=2 * ANSWER)
