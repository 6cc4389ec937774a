"""Of several answers to a prompt, those that the model finds likeliest."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field, replace

from router.choice_events import ChoiceDelta, ChoiceEnd, ChoiceEvent
from router.prepare import PreparedRequest


@dataclass(slots=True)
class _Attempt:
    """One answer, kept until all to its prompt have ended."""

    deltas: list[ChoiceDelta] = field(default_factory=list)
    end: ChoiceEnd | None = None

    @property
    def mean_logprob(self) -> float:
        """Of a token; that of an answer without tokens is below all others."""
        logprobs = [position.logprob for delta in self.deltas for position in delta.logprobs]
        return sum(logprobs) / len(logprobs) if logprobs else float("-inf")


async def best_of(
    prepared: PreparedRequest, events: AsyncGenerator[ChoiceEvent, None]
) -> AsyncGenerator[ChoiceEvent, None]:
    """The events of each prompt's `num_choices` best of `num_tried` answers, best first, equals by number.

    Yields nothing before all answers have ended. Log probabilities that were needed only to choose are left
    out, and the first choice of a prompt is charged with the tokens of the answers that are not returned.
    """
    attempts = [_Attempt() for _ in prepared.generations]
    async with aclosing(events):
        async for event in events:
            if isinstance(event, ChoiceDelta):
                attempts[event.choice].deltas.append(event)
            else:
                attempts[event.choice].end = event
    for prompt in range(len(attempts) // prepared.num_tried):
        tried = attempts[prompt * prepared.num_tried :][: prepared.num_tried]
        ranked = sorted(tried, key=lambda attempt: attempt.mean_logprob, reverse=True)
        left_out = ranked[prepared.num_choices :]
        spare = sum(attempt.end.completion_tokens for attempt in left_out if attempt.end)
        for rank, attempt in enumerate(ranked[: prepared.num_choices]):
            choice = prompt * prepared.num_choices + rank
            for delta in attempt.deltas:
                if prepared.reports_logprobs:
                    yield replace(delta, choice=choice)
                else:
                    yield replace(delta, choice=choice, logprobs=(), shown=())
            assert attempt.end is not None, "every answer that does not fail ends"
            completion_tokens = attempt.end.completion_tokens + (spare if rank == 0 else 0)
            yield replace(attempt.end, choice=choice, completion_tokens=completion_tokens)
