"""Runs a schedule on the model: tensors in, drawn tokens for each finished context out."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain, islice

import numpy as np
import numpy.typing as npt
import torch

from engine.api import TokenLogprobs
from engine.kv.block_pool import SCRATCH_BLOCK
from engine.kv.block_table import BlockTables
from engine.models.base import CausalLM
from engine.models.batch import ForwardBatch
from engine.models.features import FeaturePoints, FeatureTap
from engine.ops.buffers import Buffers
from engine.sampling.logprobs import token_logprobs
from engine.schedule import Schedule
from engine.sequence import Sequence as EngineSequence
from engine.speculation.nodes import move_accepted, node_rows, tokens_to_run, tree_order
from engine.speculation.verification.base import Failure, FailureCause, Pending, Verified
from engine.speculation.verification.verifier import Verifier
from telemetry.logs import fields

logger = logging.getLogger(__name__)

# Steps in a row in which every sequence failed, after which the model itself must be broken.
MAX_FAILED_STEPS = 3

NOT_NUMBERS = "the model's output is not a number (NaN or infinite)"
NOTHING_LEFT = (
    "no token may come next: grammar, allowed_token_ids, bad_words, min_tokens and logit_bias exclude all"
)


@dataclass(frozen=True, slots=True)
class RunFailure:
    """Why one sequence failed. `kv_is_suspect`: its logits were not numbers, so its KV may not be either."""

    message: str
    kv_is_suspect: bool


@dataclass(slots=True)
class RunResult:
    """What a schedule gave, by index into its sequences.

    Attributes:
        drawn: tokens, and which drafts were right.
        prompt_logprobs: of the prompt tokens that follow those whose log probabilities were known before.
        failures: sequences that gave nothing else.
        features: of the pass's tokens, where the runner takes any; the next pass overwrites them.
        query_starts: rows of these at which sequences begin.
    """

    drawn: dict[int, Verified] = field(default_factory=dict)
    prompt_logprobs: dict[int, list[TokenLogprobs]] = field(default_factory=dict)
    failures: dict[int, RunFailure] = field(default_factory=dict)
    features: torch.Tensor | None = None
    query_starts: tuple[int, ...] = ()

    def fail(self, index: int, failure: RunFailure) -> None:
        """A sequence failed: whatever else it gave is void."""
        self.failures[index] = failure
        self.drawn.pop(index, None)
        self.prompt_logprobs.pop(index, None)

    def take(self, index: int, alone: RunResult) -> None:
        """Adds the result of a pass of sequence `index` alone, but for its features."""
        if 0 in alone.failures:
            self.failures[index] = alone.failures[0]
        if 0 in alone.drawn:
            self.drawn[index] = alone.drawn[0]
        if 0 in alone.prompt_logprobs:
            self.prompt_logprobs[index] = alone.prompt_logprobs[0]


@dataclass(frozen=True, slots=True)
class _PromptSpan:
    """`count` tokens of sequence `index` from position `first` on, whose logits tell of those that follow."""

    index: int
    first: int
    count: int


class ModelRunner:
    """Owns the model and the pool's tensor.

    Args:
        model: the model.
        kv: the pool, [blocks, layers, 2, kv_heads, block_size, head_dim].
        tables: block tables of the scheduled sequences, page by page.
        verifier: draws the tokens.
        points: features that are taken of every pass.
    """

    def __init__(
        self,
        model: CausalLM,
        kv: torch.Tensor,
        tables: BlockTables,
        verifier: Verifier,
        points: FeaturePoints | None = None,
    ) -> None:
        self._model = model
        self._num_groups = len(model.config.layer_groups)
        self._groups = np.arange(self._num_groups, dtype=np.int64)[:, None]
        self._kv = kv
        self._tables = tables
        self._verifier = verifier
        self._points = points
        # Where they lay before: then the model's pass need not be looked at anew.
        self._features = Buffers(kv.dtype, kv.device)
        self._block_size = kv.shape[4]
        self._failed_steps = 0

    def run(self, schedule: Schedule) -> RunResult:
        """Runs one step.

        An exception of the model is traced to the sequences that cause it by running each alone, which
        is safe: a step's KV is written to the same slots again, and draws do not depend on the batch.
        Where nothing succeeds in `MAX_FAILED_STEPS` steps in a row, the exception is raised, for then it
        is not the requests' fault.
        """
        try:
            result = self._execute(schedule)
        # Any error of a model may come from one request's input; which one is found out here.
        except Exception as error:
            logger.exception("step failed", extra=fields(batch_size=len(schedule.sequences)))
            result = self._run_each_alone(schedule, error)
            if len(result.failures) == len(schedule.sequences):
                self._failed_steps += 1
                if self._failed_steps >= MAX_FAILED_STEPS:
                    raise
                return result
        self._failed_steps = 0
        return result

    def scrub(self, blocks: Sequence[int]) -> None:
        """Zeroes blocks and the scratch block, for NaN there would spread even through masked attention."""
        self._kv[[SCRATCH_BLOCK, *blocks]] = 0

    def build_batch(self, schedule: Schedule) -> ForwardBatch:
        """The tensors of a schedule, on the pool's device.

        Logits are wanted first of the last token of each whole context and of the drafts that follow it, then
        of prompt tokens whose followers' log probabilities are asked for.
        """
        sequences = schedule.sequences
        rows = np.array([sequence.row for sequence in sequences], dtype=np.int64)
        starts = np.array([sequence.num_computed for sequence in sequences], dtype=np.int64)
        counts = np.array(schedule.counts, dtype=np.int64)
        ends = starts + counts
        query_starts = np.zeros(len(sequences) + 1, dtype=np.int64)
        np.cumsum(counts, out=query_starts[1:])

        positions = np.arange(schedule.num_tokens, dtype=np.int64)
        positions += np.repeat(starts - query_starts[:-1], counts)
        pages, offsets = np.divmod(positions, self._block_size)
        groups = self._num_groups
        owners = self._tables.array[np.repeat(rows, counts), pages * groups + self._groups]
        for i, sequence in enumerate(sequences):
            if sequence.recompute_last:
                owners[:, query_starts[i]] = SCRATCH_BLOCK
        slots = owners * self._block_size + offsets

        num_pages = -(-ends // self._block_size)
        width = int(num_pages.max())
        block_tables = self._tables.array[rows, : width * groups].reshape(len(rows), width, groups)
        # Blocks may be allocated beyond the context so far; what they hold is nobody's business.
        block_tables[np.arange(width) >= num_pages[:, None]] = SCRATCH_BLOCK

        token_ids = np.fromiter(
            chain.from_iterable(
                tokens_to_run(sequence, count)
                for sequence, count in zip(sequences, schedule.counts, strict=True)
            ),
            dtype=np.int64,
            count=schedule.num_tokens,
        )
        totals = np.array([len(sequence.token_ids) for sequence in sequences], dtype=np.int64)
        drawing = ends >= totals
        logits_rows = [node_rows(query_starts[1:][drawing], (ends - totals)[drawing] + 1)]
        for span in _prompt_spans(schedule):
            first = query_starts[span.index] + span.first - starts[span.index]
            logits_rows.append(np.arange(first, first + span.count))
        visible = tree_order(sequences, query_starts, starts, positions)
        return ForwardBatch(
            token_ids=self._tensor(token_ids),
            positions=self._tensor(positions),
            slots=self._tensor(slots),
            query_starts=tuple(query_starts.tolist()),
            context_lens=tuple(ends.tolist()),
            block_tables=self._tensor(block_tables.transpose(2, 0, 1)),
            logits_rows=self._tensor(np.concatenate(logits_rows)),
            visible=None if visible is None else self._tensor(visible),
        )

    def _tensor(self, array: npt.NDArray[np.int64]) -> torch.Tensor:
        return torch.from_numpy(array).to(self._kv.device)

    def _execute(self, schedule: Schedule) -> RunResult:
        result = RunResult()
        with torch.inference_mode():
            batch = self.build_batch(schedule)
            tap = self._tap(len(batch.token_ids))
            logits = self._model.forward(batch, self._kv, tap)
            if tap is not None:
                result.features = tap.out
            result.query_starts = batch.query_starts
            num_rows = self._draw(schedule, logits, result)
            for index in [index for index, failure in result.failures.items() if failure.kv_is_suspect]:
                if schedule.sequences[index].drafts is not None:
                    self._run_without_drafts(schedule, index, result)
            if len(batch.logits_rows) > num_rows:
                self._report_prompts(schedule, _prompt_spans(schedule), logits[num_rows:], result)
        return result

    def _tap(self, num_tokens: int) -> FeatureTap | None:
        points = self._points
        if points is None:
            return None
        out, _ = self._features.get(num_tokens, points.width(self._model.config.hidden_size))
        return FeatureTap(points, out)

    def _draw(self, schedule: Schedule, logits: torch.Tensor, result: RunResult) -> int:
        """Draws for the sequences whose contexts are whole; the rows of logits that were theirs."""
        drawing: list[int] = []
        pending: list[Pending] = []
        row = 0
        for index, (sequence, count) in enumerate(zip(schedule.sequences, schedule.counts, strict=True)):
            if sequence.num_computed + count < len(sequence.token_ids):
                continue
            drawing.append(index)
            pending.append(Pending(sequence.rules, len(sequence.token_ids), sequence.drafts, row))
            row += 1 if sequence.drafts is None else sequence.drafts.num_nodes
        spoilt = _spoilt_by_drafts(logits, pending)
        for index, each, verified in zip(
            drawing, pending, self._verifier.verify(logits, pending), strict=True
        ):
            sequence = schedule.sequences[index]
            if verified.token_ids:
                # What failed behind these tokens fails in the next step, if the sequence lives to see it.
                result.drawn[index] = verified
                if verified.path:
                    self._settle(sequence, verified)
                if each.row in spoilt:
                    known = len(sequence.token_ids) + len(verified.token_ids)
                    self._wipe(sequence, min(sequence.num_computed + 1 + len(verified.path), known - 1))
            elif verified.failure is not None:
                result.fail(index, _run_failure(verified.failure))
        return row

    def _settle(self, sequence: EngineSequence, verified: Verified) -> None:
        if sequence.drafts is not None and not sequence.drafts.is_chain:
            table = self._tables.array[sequence.row]
            for group in range(self._num_groups):
                own = table[group :: self._num_groups]
                move_accepted(self._kv, own, len(sequence.token_ids) - 1, verified.path, self._block_size)

    def _run_without_drafts(self, schedule: Schedule, index: int, result: RunResult) -> None:
        """Runs a sequence again that failed: its drafts may have been to blame.

        Attention that multiplies what a token does not see by 0 brings their NaN to tokens before them.
        """
        sequence = schedule.sequences[index]
        if result.features is not None:
            # Each pass overwrites those of the one before.
            result.features = result.features.clone()
        self._wipe(sequence, sequence.num_computed)
        drafts, sequence.drafts = sequence.drafts, None
        alone = Schedule()
        alone.add(sequence, 1)
        outcome = self._execute(alone)
        sequence.drafts = drafts
        del result.failures[index]
        result.take(index, outcome)
        if result.features is not None and outcome.features is not None:
            result.features[result.query_starts[index]] = outcome.features[0]

    def _wipe(self, sequence: EngineSequence, first: int) -> None:
        """Zeroes the slots of a pass over drafts from position `first` on: others may get these blocks."""
        assert sequence.drafts is not None
        positions = np.arange(first, sequence.num_computed + sequence.drafts.num_nodes)
        pages, offsets = np.divmod(positions, self._block_size)
        table, groups = self._tables.array[sequence.row], self._num_groups
        for group in range(groups):
            self._kv[table[pages * groups + group], :, :, :, offsets] = 0

    def _report_prompts(
        self, schedule: Schedule, spans: list[_PromptSpan], logits: torch.Tensor, result: RunResult
    ) -> None:
        """Log probabilities of prompt tokens from the logits of those before, [sum of counts, vocab]."""
        followers: list[int] = []
        num_top: list[int] = []
        for span in spans:
            sequence = schedule.sequences[span.index]
            followers += sequence.token_ids[span.first + 1 : span.first + 1 + span.count]
            num_top += [sequence.request.sampling.prompt_logprobs or 0] * span.count
        reports = iter(token_logprobs(logits, followers, num_top))
        for span in spans:
            own = list(islice(reports, span.count))
            if all(math.isfinite(report.logprob) for report in own):
                result.prompt_logprobs[span.index] = own
            else:
                result.fail(span.index, RunFailure(NOT_NUMBERS, kv_is_suspect=True))

    def _run_each_alone(self, schedule: Schedule, error: Exception) -> RunResult:
        message = f"{type(error).__name__}: {error}"
        if len(schedule.sequences) == 1:
            return RunResult(failures={0: RunFailure(message, kv_is_suspect=False)})
        result = RunResult()
        parts: list[torch.Tensor] = []
        starts = [0]
        for index, (sequence, count) in enumerate(zip(schedule.sequences, schedule.counts, strict=True)):
            alone = Schedule()
            alone.add(sequence, count)
            try:
                outcome = self._execute(alone)
            # As in `run`: whatever the model raises for this sequence alone is this sequence's failure.
            except Exception as own:
                failure = RunFailure(f"{type(own).__name__}: {own}", kv_is_suspect=False)
                outcome = RunResult(failures={0: failure})
            result.take(index, outcome)
            if outcome.features is not None:
                parts.append(outcome.features.clone())
            starts.append(starts[-1] + (0 if outcome.features is None else len(outcome.features)))
        result.features = torch.cat(parts) if parts else None
        result.query_starts = tuple(starts)
        return result


def _spoilt_by_drafts(logits: torch.Tensor, pending: Sequence[Pending]) -> set[int]:
    """First rows of the sequences with drafts in whose logits [R, vocab] there is anything but numbers."""
    drafted = [(each.row, each.tree.num_nodes) for each in pending if each.tree is not None]
    if not drafted:
        return set()
    rows = logits[: sum(drafted[-1])]
    # NumPy's needs a quarter of torch's time.
    greatest = rows.numpy().max(axis=-1) if rows.device.type == "cpu" else rows.amax(dim=-1).cpu().numpy()
    return {row for row, nodes in drafted if not np.isfinite(greatest[row : row + nodes]).all()}


def _run_failure(failure: Failure) -> RunFailure:
    if failure.cause is FailureCause.NOT_NUMBERS:
        return RunFailure(NOT_NUMBERS, kv_is_suspect=True)
    message = failure.message if failure.cause is FailureCause.GRAMMAR else NOTHING_LEFT
    return RunFailure(message, kv_is_suspect=False)


def _prompt_spans(schedule: Schedule) -> list[_PromptSpan]:
    spans: list[_PromptSpan] = []
    for index, sequence in enumerate(schedule.sequences):
        if sequence.prompt_logprobs is None or not sequence.needs_prompt_logits:
            continue
        # What was reported before a preemption is not reported again.
        first = max(sequence.num_computed, len(sequence.prompt_logprobs))
        end = min(sequence.num_computed + schedule.counts[index], sequence.num_prompt - 1)
        if first < end:
            spans.append(_PromptSpan(index, first, end - first))
    return spans
