"""Collects what one step produced, and the totals over all steps."""

from __future__ import annotations

from collections.abc import Callable, Collection
from itertools import repeat

from engine.api import (
    CacheEvents,
    DraftReport,
    FinishReason,
    KvReady,
    PrefillDone,
    SequenceFailure,
    StepOutput,
    TokenLogprobs,
    TokenOutput,
)
from engine.sequence import Sequence


class StepRecorder:
    """Turns what happens to sequences within a step into its StepOutput.

    Args:
        block_size: tokens of a page.
        num_groups: blocks of a page.
        clock: monotonic seconds.

    Attributes:
        prompt_tokens: of all finished prefills.
        cached_tokens: those of them that came from the prefix cache.
        generated_tokens: tokens drawn, those of held prefills included, adopted ones not.
    """

    def __init__(self, block_size: int, num_groups: int, clock: Callable[[], float]) -> None:
        self._block_size = block_size
        self._num_groups = num_groups
        self._clock = clock
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.generated_tokens = 0
        self._step = 0
        self._begin_s = 0.0
        self._tokens: list[TokenOutput] = []
        self._kv_ready: list[KvReady] = []
        self._prefills_done: list[PrefillDone] = []
        self._failures: list[SequenceFailure] = []
        self._drafts: list[DraftReport] = []

    def begin(self) -> None:
        """Starts a step."""
        self._step += 1
        self._begin_s = self._clock()
        self._tokens = []
        self._kv_ready = []
        self._prefills_done = []
        self._failures = []
        self._drafts = []

    def tokens(
        self,
        sequence: Sequence,
        index: int,
        token_ids: Collection[int],
        reason: FinishReason | None,
        logprobs: Collection[TokenLogprobs],
    ) -> None:
        """Tokens of the answer, the first of them at `index`; `reason` is the last one's."""
        name, last = sequence.request_id, index + len(token_ids) - 1
        for place, (token_id, report) in enumerate(
            zip(token_ids, logprobs or repeat(None), strict=False), index
        ):
            own = reason if place == last else None
            self._tokens.append(TokenOutput(name, place, token_id, own, report))

    def kv_written(self, sequence: Sequence, start_unix_ns: int, end_unix_ns: int) -> None:
        """A held prefill ran: announces the blocks that are complete now, if there are new ones."""
        num_tokens = sequence.num_computed
        if num_tokens < sequence.request.num_context_tokens:
            num_tokens -= num_tokens % self._block_size
        end = -(-num_tokens // self._block_size)
        if end > sequence.num_announced:
            groups = self._num_groups
            blocks = tuple(sequence.blocks[sequence.num_announced * groups : end * groups])
            sequence.num_announced = end
            self._kv_ready.append(
                KvReady(sequence.request_id, num_tokens, blocks, start_unix_ns, end_unix_ns)
            )

    def prefill_done(self, sequence: Sequence, carried: bytes) -> None:
        """The context of a sequence is computed for the first time."""
        # The resumed tokens belong to the answer: usage counts the prompt's alone.
        cached_tokens = min(sequence.cached_tokens or 0, sequence.num_prompt)
        self.prompt_tokens += sequence.num_prompt
        self.cached_tokens += cached_tokens
        self._prefills_done.append(
            PrefillDone(
                request_id=sequence.request_id,
                cached_tokens=cached_tokens,
                queue_s=sequence.admitted_s - sequence.submitted_s,
                prefill_s=self._clock() - sequence.admitted_s,
                prompt_logprobs=tuple(sequence.prompt_logprobs or ()),
                carried=carried,
            )
        )

    def verified(self, sequence: Sequence, drafted: int, accepted: int) -> None:
        """A decode of a speculating engine ran, with so many drafts."""
        self._drafts.append(DraftReport(sequence.request_id, drafted, accepted))

    def failed(self, sequence: Sequence, message: str) -> None:
        """The engine gives a sequence up."""
        self._failures.append(SequenceFailure(sequence.request_id, message))

    def end(self, cache_events: CacheEvents, batch_size: int, num_tokens: int) -> StepOutput:
        """Ends the step."""
        return StepOutput(
            step=self._step,
            tokens=tuple(self._tokens),
            kv_ready=tuple(self._kv_ready),
            prefills_done=tuple(self._prefills_done),
            cache_events=cache_events,
            failures=tuple(self._failures),
            batch_size=batch_size,
            num_tokens=num_tokens,
            duration_s=self._clock() - self._begin_s,
            drafts=tuple(self._drafts),
        )
