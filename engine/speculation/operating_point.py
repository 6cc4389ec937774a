"""The operating point: how many drafts each request of a step gets, so that all are answered soonest.

Estimates are learnt from the steps themselves: what a pass costs by its tokens (`pass_cost`), what the
drafters take (`draft_cost`), and of each drafter (`outlook`) whether it has anything to propose
(`availability`) and how many drafts of a request will be right (`acceptance`). Every few steps the allocation
that they say is fastest is taken (`allocation`), no drafts at all among the choices; of the drafts that come
those are verified that are worth it (`selection`). Against noise:

- a choice is kept until another is better by a margin, for each band of batch sizes by itself, so that a
  batch that changes its size does not change its mind;
- what estimates promise is corrected by what came of it, so a promise that is not kept ends by itself;
- now and then a step is spent on what is not chosen, without drafts where all draft and with some where none
  do, so that both sides of the comparison stay measured. Little time may be lost by that (`probing`).

A choice changes how fast tokens come, never which.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from engine.bands import band_of
from engine.sequence import Sequence as EngineSequence
from engine.speculation.acceptance import ChainAcceptance
from engine.speculation.allocation import Allocation, Allocator
from engine.speculation.draft_cost import DraftCostModel
from engine.speculation.outlook import Outlook
from engine.speculation.pass_cost import PassCostModel
from engine.speculation.plan import Mode, Plan, Seen, shares_of, usual_of
from engine.speculation.planner import DraftOutcome, OffReason, PassCost
from engine.speculation.probing import FIRST_INTERVAL, Budget, Timer
from engine.speculation.selection import DraftSelection
from engine.speculation.tree import DraftTree, size_of
from engine.speculation.tree_acceptance import TreeAcceptance, tree_sizes

SWITCH = 1.01
"""Another number of drafts must promise so many times the speed of the present one; none need not."""

_PROMISE_DECAY = 0.99
_PROMISE_PRIOR = 30.0
_LEAST_KEPT, _MOST_KEPT = 0.7, 1.1
_HOPED_GAIN, _HOPED_SIGMAS = 1.1, 1.0
_FAR_AHEAD, _PATIENCE = 1.2, 4
"""Where drafts are so far ahead of none, it is so many times as long until a step shows again by how much."""
_FIRST_OF_CHAINS = 2
_SETTLED = 32
_QUIET_FIRST, _QUIET_LAST = 8, 64
_CHOOSE_EVERY = 8
_MOST_ENDING = 0.25
"""Where more of the requests are near their ends, what is best now says nothing of later steps."""
_FORGET_EVERY, _FORGET_AFTER = 512, 4096


@dataclass(slots=True)
class _Band:
    """What is kept for batches of about one size.

    Attributes:
        without: when a step without drafts is due, while there are some.
        drafts: when a step with drafts is due, while there are none.
        explore: when a step with another cap is due.
        cap: most drafts of one request, as last chosen; 0 for none, None before the first choice.
        expected: right drafts that were promised lately.
        hits: right drafts that there were.
        steps: that had drafts lately.
    """

    without: Timer
    drafts: Timer
    explore: Timer
    cap: int | None = None
    expected: float = 0.0
    hits: float = 0.0
    steps: float = 0.0

    @property
    def kept(self) -> float:
        """Which share of the promised drafts was right."""
        # By steps, however many drafts: texts of one batch are hard or easy together.
        surprise = self.hits / self.expected - 1 if self.expected else 0.0
        share = 1 + self.steps / (self.steps + _PROMISE_PRIOR) * surprise
        return min(max(share, _LEAST_KEPT), _MOST_KEPT)


@dataclass(slots=True)
class _Request:
    """What is kept for one request: `quiet` counts to when it is tried again after its drafts were wrong."""

    seen_at: int
    quiet: Timer = field(default_factory=lambda: Timer(_QUIET_FIRST, _QUIET_LAST))


class AdaptivePlanner:
    """Chooses by estimates that it learns. A `DraftPlanner`; deterministic given the measurements.

    Args:
        calibration: (tokens, seconds) of the target's passes on this machine, see `PassCostModel`.
        most: most drafts of one request, at least 1.
        branching: whether the drafter makes trees: then drafts are counted, not positions.

    Raises:
        ValueError: no calibration, or `most` below 1.
    """

    def __init__(
        self, calibration: Sequence[tuple[int, float]], most: int, *, branching: bool = False
    ) -> None:
        if most < 1:
            raise ValueError(f"at least 1 draft must be allowed, not {most}")
        self._most = most
        self._caps = tree_sizes(most) if branching else tuple(range(1, most + 1))
        self._outlook = Outlook(lambda: TreeAcceptance(most) if branching else ChainAcceptance(most))
        self._pass_cost = PassCostModel(calibration)
        self._draft_cost = DraftCostModel()
        self._selection = DraftSelection()
        # One chain says something of all others, a tree of its size alone: early ones would be misleading.
        self._first_probe = FIRST_INTERVAL if branching else _FIRST_OF_CHAINS
        self._bands: dict[int, _Band] = {}
        self._requests: dict[int, _Request] = {}
        self._budget = Budget()
        self._plan = Plan()
        # Of the step under way, for `Seen`.
        self._found: list[tuple[EngineSequence, int, int]] = []
        self._exhausted: dict[int, int] = {}
        # Not learnt from yet: in one go that takes far less time than after each pass, which empties caches.
        self._seen: list[Seen] = []
        self._steps = 0
        self._off = dict.fromkeys(OffReason, 0)

    @property
    def off(self) -> Mapping[OffReason, int]:
        """Decodes that were to have no drafts, so far."""
        return self._off

    def wanted(self, sequences: Sequence[EngineSequence]) -> Sequence[int]:
        """As `DraftPlanner.wanted`."""
        decodes = len(sequences)
        limits = [self._limit(sequence) for sequence in sequences]
        most = max(limits, default=0)
        if most < 1:
            self._plan = Plan()
            self._off[OffReason.ENDING] += sum(sequence.max_drafts > 0 for sequence in sequences)
            return [0] * decodes
        if (again := self._again(sequences, limits)) is not None:
            return again
        self._learn()
        return self._chosen(sequences, limits, most)

    def kept(
        self,
        sequences: Sequence[EngineSequence],
        asked: Sequence[int],
        trees: Sequence[DraftTree | None],
    ) -> Sequence[int]:
        """As `DraftPlanner.kept`."""
        share = self._band(len(sequences)).kept
        kept = self._selection.kept(self._plan, share, sequences, asked, trees)
        self._found, self._exhausted = [], {}
        for sequence, room, tree, count in zip(sequences, asked, trees, kept, strict=True):
            # A draft that was too unlikely to be verified is as good as none.
            there = count if tree is not None and tree.confidence is not None else size_of(tree)
            if room:
                self._found.append((sequence, room, there))
            if count == there < room:
                self._exhausted[sequence.arrival] = room
        return kept

    def observe(self, cost: PassCost, outcomes: Sequence[DraftOutcome]) -> None:
        """As `DraftPlanner.observe`."""
        self._steps += 1
        self._seen.append(Seen(self._plan, cost, outcomes, self._found, self._exhausted))
        self._found, self._exhausted = [], {}
        if len(self._seen) >= _CHOOSE_EVERY:
            self._learn()
        if self._steps % _FORGET_EVERY == 0:
            self._forget()

    def _learn(self) -> None:
        """Takes what was seen since the last time."""
        for seen in self._seen:
            cost = seen.cost
            self._outlook.step()
            self._selection.step()
            self._selection.observe(seen.outcomes)
            for sequence, asked, there in seen.found:
                self._request(sequence.arrival)
                self._outlook.found(sequence, asked, there)
            # Prompts beside decodes cost what says nothing of either.
            if cost.decodes and not cost.prompt_tokens:
                most = max((outcome.asked for outcome in seen.outcomes), default=0)
                self._pass_cost.observe(cost.decodes, cost.nodes, cost.target_s)
                self._draft_cost.observe(cost.decodes, most, cost.draft_s)
            drafted = [outcome for outcome in seen.outcomes if outcome.drafted]
            if drafted:
                self._take(self._band(max(1, cost.decodes)), seen, drafted)
        self._seen.clear()

    def _again(self, sequences: Sequence[EngineSequence], limits: Sequence[int]) -> Sequence[int] | None:
        """The last choice, where it was for as many: estimates change slowly, and choosing takes time."""
        plan = self._plan
        if plan.allocation is None or not plan.lasts or self._steps < _SETTLED:
            return None
        if plan.age >= _CHOOSE_EVERY - 1 or len(plan.allocation.counts) != len(sequences):
            return None
        counts = []
        for sequence, limit in zip(sequences, limits, strict=True):
            share = plan.share(sequence.arrival)
            if share is None:
                return None
            counts.append(min(share.count, limit))
        self._plan = replace(plan, retried=frozenset(), age=plan.age + 1)
        self._budget.step(plan.allocation.seconds)
        self._count_off(plan.mode, sequences, counts, limits)
        return counts

    def _chosen(self, sequences: Sequence[EngineSequence], limits: Sequence[int], most: int) -> list[int]:
        """A new choice, by all that is known now. `most` is the greatest of the limits, at least 1."""
        decodes = len(sequences)
        band = self._band(decodes)
        chances = self._outlook.chances(sequences, most)
        gains = self._outlook.gains(sequences, most)
        pass_s = self._pass_cost.seconds(decodes, decodes * (most + 1))
        draft_s = self._draft_cost.seconds(decodes, most)
        likely = Allocator(gains * band.kept, chances, limits, pass_s, draft_s)

        def hoped() -> Allocator:
            """What may well be, if more is right and passes are faster than was seen."""
            gains = self._outlook.gains(sequences, most, sigmas=_HOPED_SIGMAS) * _HOPED_GAIN * band.kept
            pass_s = self._pass_cost.seconds(decodes, decodes * (most + 1), sigmas=_HOPED_SIGMAS)
            return Allocator(gains, chances, limits, pass_s, draft_s)

        caps = [cap for cap in self._caps if cap <= most]
        steps = 1 + self._plan.age
        usual = band.cap or 1
        ending = [
            limit < min(usual, sequence.max_drafts) for limit, sequence in zip(limits, sequences, strict=True)
        ]
        if is_last := sum(ending) > _MOST_ENDING * decodes:
            mode, allocation = Mode.CHOSEN, _fastest(likely, caps)
            self._budget.step(allocation.seconds)
        else:
            mode, allocation = self._choose(band, likely, hoped, caps, steps)
        requests = [sequence.arrival for sequence in sequences]
        own = [self._request(request) for request in requests]
        counts = list(allocation.counts)
        retried: list[int] = []
        if mode is Mode.CHOSEN and any(counts):
            retried = self._retried(own, counts, limits, likely.further_s(sum(counts)), steps)
        for index in retried:
            counts[index] = 1
        shares = shares_of(allocation, gains, chances)
        self._plan = Plan(
            mode=mode,
            allocation=allocation,
            shares=dict(zip(requests, shares, strict=True)),
            newcomer=usual_of([share for share, ends in zip(shares, ending, strict=True) if not ends]),
            retried=frozenset(requests[index] for index in retried),
            # Where nobody drafts the price may be what keeps it from being seen that drafts are right.
            verifies_all=mode is Mode.PROBE_DRAFTS and not band.cap,
            pass_s=pass_s,
            lasts=mode is Mode.CHOSEN and not is_last,
        )
        self._count_off(mode, sequences, counts, limits)
        return counts

    def _band(self, decodes: int) -> _Band:
        key = band_of(decodes)
        if key not in self._bands:
            first = self._first_probe
            self._bands[key] = _Band(Timer(first), Timer(first), Timer(first))
        return self._bands[key]

    def _limit(self, sequence: EngineSequence) -> int:
        """Drafts that could all be of use: one more token follows them."""
        left = sequence.request.sampling.max_tokens - sequence.next_index
        return max(0, min(self._most, sequence.max_drafts, left - 1))

    def _request(self, request: int) -> _Request:
        own = self._requests.setdefault(request, _Request(self._steps))
        own.seen_at = self._steps
        return own

    def _choose(
        self,
        band: _Band,
        likely: Allocator,
        hoped: Callable[[], Allocator],
        caps: Sequence[int],
        steps: int,
    ) -> tuple[Mode, Allocation]:
        """The fastest allocation, or one that is due to be measured; `steps` since the last choice."""
        none, ways = likely.none(), likely.best(caps)
        fastest = max(ways, key=lambda cap: ways[cap].rate)
        if band.cap in ways and ways[fastest].rate < SWITCH * ways[band.cap].rate:
            fastest = band.cap
        best, timer, other = ways[fastest], band.explore, band.drafts
        if best.rate <= (1.0 if band.cap else SWITCH) * none.rate:
            fastest, best, timer, other = 0, none, band.drafts, band.explore
        other.seen()
        if fastest != band.cap:
            timer.hurry()
        band.cap = fastest
        patience = _PATIENCE if best.rate > _FAR_AHEAD * none.rate else 1
        if fastest and band.without.wait(steps, patience) and self._afford(none, best):
            band.without.probed()
            return Mode.PROBE_NONE, none
        if timer.wait(steps):
            hopes = hoped().best(caps)
            others = [way for way in hopes.values() if way.counts != best.counts]
            hope = max(others, key=lambda way: way.rate, default=best)
            tries = [likely.expected(hope.counts)] if hope.rate > best.rate else []
            tries += [] if fastest else [ways[1]]
            probe = next((way for way in tries if self._afford(way, best)), None)
            if probe is not None or not tries:
                timer.probed()
            else:  # What is hoped for does not become less likely while there is no time for it.
                timer.seen()
            if probe is not None:
                return Mode.PROBE_DRAFTS, probe
        self._budget.step(best.seconds)
        return Mode.CHOSEN, best

    def _afford(self, way: Allocation, best: Allocation) -> bool:
        """Whether a step may be spent on a way that is not the best; then it is."""
        if not self._budget.spend(way.seconds * max(0.0, 1 - way.rate / best.rate)):
            return False
        self._budget.step(way.seconds)
        return True

    def _retried(
        self,
        own: Sequence[_Request],
        counts: Sequence[int],
        limits: Sequence[int],
        further_s: float,
        steps: int,
    ) -> list[int]:
        """Requests without drafts that are to have one all the same, for texts change."""
        retried: list[int] = []
        for index, request in enumerate(own):
            if counts[index]:
                request.quiet.seen()
                request.quiet.hurry()
            elif limits[index] and request.quiet.wait(steps) and self._budget.spend(further_s):
                request.quiet.probed()
                retried.append(index)
        return retried

    def _count_off(
        self, mode: Mode, sequences: Sequence[EngineSequence], counts: Sequence[int], limits: Sequence[int]
    ) -> None:
        if mode is Mode.PROBE_NONE:
            reason = OffReason.PROBE
        else:
            reason = OffReason.REQUEST if any(counts) else OffReason.BATCH
        for sequence, count, limit in zip(sequences, counts, limits, strict=True):
            if not count and sequence.max_drafts:
                self._off[reason if limit else OffReason.ENDING] += 1

    def _take(self, band: _Band, seen: Seen, drafted: Sequence[DraftOutcome]) -> None:
        """Takes the outcomes of a step's drafts."""
        plan = seen.plan
        tested = [seen.exhausted.get(outcome.sequence.arrival, outcome.drafted) for outcome in drafted]
        expected = 0.0
        for outcome, count in zip(drafted, tested, strict=True):
            share = plan.share(outcome.sequence.arrival)
            expected += share.promised[count] if share is not None else 0.0
        hits = sum(outcome.accepted for outcome in drafted)
        if self._steps > _SETTLED:
            band.expected = band.expected * _PROMISE_DECAY + expected
            band.hits = band.hits * _PROMISE_DECAY + hits
            band.steps = band.steps * _PROMISE_DECAY + 1
        for outcome, count in zip(drafted, tested, strict=True):
            request = outcome.sequence.arrival
            self._outlook.verified(outcome.sequence, outcome.drafted, outcome.accepted, count)
            if request in plan.retried and outcome.accepted:
                self._requests[request].quiet.hurry()
                self._requests[request].quiet.again()
        if hits > expected + expected**0.5 and not band.cap:  # more than by chance, about
            band.drafts.hurry()
            band.drafts.again()

    def _forget(self) -> None:
        for request in [r for r, own in self._requests.items() if own.seen_at < self._steps - _FORGET_AFTER]:
            del self._requests[request]
            self._outlook.forget(request)


def _fastest(likely: Allocator, caps: Sequence[int]) -> Allocation:
    """Whatever was chosen before."""
    return max((likely.none(), *likely.best(caps).values()), key=lambda way: way.rate)
