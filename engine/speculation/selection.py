"""Which of the drafts that were found are verified: those that are worth what they make a pass longer.

The plan says how many drafts are asked for. What comes of that is of very different worth: a head is nearly
sure of some drafts, and of others not at all. In a small batch most are worth a try, in a large one, where
each row of a pass is computed at its full price, only the likely ones.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.sampling.rules import is_greedy
from engine.sequence import Sequence as EngineSequence
from engine.speculation.acceptance import Floats
from engine.speculation.confidence import ConfidenceCalibration
from engine.speculation.plan import Mode, Plan
from engine.speculation.planner import DraftOutcome
from engine.speculation.tree import DraftTree, size_of


def worth_verifying(
    chances: Sequence[Sequence[float]],
    per_pass: Sequence[float],
    forced: Sequence[int],
    pass_seconds: Floats,
    step_s: float,
) -> list[int]:
    """How many of the drafts that were found are verified, of each request the first ones.

    A step that takes as long as planned brings each request forward by one pass on average. So much has to be
    gained for the time that drafts take: then steps gain most together, not each for itself (Dinkelbach,
    1967, for the ratio of all that is gained and all time).

    Args:
        chances: of each request, that each of its drafts is right, all before it too; never rising.
        per_pass: tokens of each request in a pass on average, at least 1: a right draft saves its part of it.
        forced: drafts of each request that are verified whatever they cost, at most as many as there are.
        pass_seconds: of the pass by the number of drafts in it, up to all of them.
        step_s: what a step takes as planned, above 0.
    """
    order = [
        (chance / tokens, request)
        for request, (own, tokens, first) in enumerate(zip(chances, per_pass, forced, strict=True))
        for chance in own[first:]
    ]
    order.sort(key=lambda draft: -draft[0])
    first = sum(forced)
    longer_s = pass_seconds[first : first + len(order) + 1].tolist()
    price = len(chances) / step_s
    saved, number = 0.0, 0
    best = -price * longer_s[0]
    for count, ((saves, _), seconds) in enumerate(zip(order, longer_s[1:], strict=True), start=1):
        saved += saves
        if saved - price * seconds > best:
            best, number = saved - price * seconds, count
    counts = list(forced)
    for _, request in order[:number]:
        counts[request] += 1
    return counts


class DraftSelection:
    """Chooses by each draft's own chance where its drafter tells how sure it is, else by its request's."""

    def __init__(self) -> None:
        # By drafter, and whether answers are greedy.
        self._learnt: dict[tuple[object, bool], ConfidenceCalibration] = {}

    def kept(
        self,
        plan: Plan,
        kept_share: float,
        sequences: Sequence[EngineSequence],
        asked: Sequence[int],
        trees: Sequence[DraftTree | None],
    ) -> list[int]:
        """Drafts of each tree that are verified, its first ones.

        Args:
            plan: of this step.
            kept_share: which part of the right drafts that are promised there is.
            sequences: of the step.
            asked: drafts of each that were asked for.
            trees: that were found for it.
        """
        found = [size_of(tree) for tree in trees]
        allocation = plan.allocation
        shares = [share for sequence in sequences if (share := plan.share(sequence.arrival)) is not None]
        if allocation is None or len(shares) < len(sequences):
            return found
        tells = any(tree is not None and tree.confidence is not None for tree in trees)
        # Where all came that was asked for nothing is new.
        if not tells and (plan.mode is not Mode.CHOSEN or sum(found) in (0, sum(asked))):
            return found
        chances: list[Sequence[float]] = []
        forced: list[int] = []
        for place, (sequence, tree, share) in enumerate(zip(sequences, trees, shares, strict=True)):
            # What was drawn must not decide what is verified, not even by where a chain ended for it.
            is_forced = plan.verifies_all or sequence.arrival in plan.retried
            if tree is None:
                chances.append(())
            elif tree.confidence is not None:
                surest_first = sorted(tree.confidence, reverse=True)
                chances.append(self._of(sequence).chances(surest_first))
            else:
                chances.append([min(gain * kept_share, 1.0) for gain in share.coming[: found[place]]])
                is_forced |= tree.distributions is not None or plan.mode is not Mode.CHOSEN
            forced.append(found[place] if is_forced else 0)
        return worth_verifying(
            chances, [share.per_pass for share in shares], forced, plan.pass_s, allocation.seconds
        )

    def observe(self, outcomes: Sequence[DraftOutcome]) -> None:
        """Learns from a pass."""
        for outcome in outcomes:
            tree = outcome.tree
            if tree is not None and tree.confidence is not None:
                own, path = self._of(outcome.sequence), set(outcome.path)
                for node, confidence in enumerate(tree.confidence, start=1):
                    own.observe(confidence, node in path)

    def step(self) -> None:
        """Time passes."""
        for learnt in self._learnt.values():
            learnt.step()

    def _of(self, sequence: EngineSequence) -> ConfidenceCalibration:
        key = sequence.drafter, is_greedy(sequence.request.sampling)
        if key not in self._learnt:
            self._learnt[key] = ConfidenceCalibration()
        return self._learnt[key]
