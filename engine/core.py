"""The engine: requests in, one step at a time, tokens out. Implements `engine.api.Engine`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count

import torch

from engine.api import (
    BlockHasher,
    EngineRequest,
    EngineStats,
    FinishReason,
    Reservation,
    StepOutput,
    TokenLogprobs,
)
from engine.config import EngineConfig
from engine.grammar.base import GrammarCompiler, GrammarMatcher
from engine.kv.block_manager import BlockManager
from engine.kv.block_pool import require
from engine.kv.host_pool import HostPool
from engine.kv.swap import SwapSpace
from engine.models.base import CausalLM
from engine.prefill_budget import PrefillBudget
from engine.request_limits import RequestLimits, max_model_len
from engine.runner import ModelRunner
from engine.sampling.rules import TokenRules
from engine.sampling.sampler import Sampler
from engine.schedule import Schedule
from engine.scheduler import Scheduler
from engine.sequence import Sequence as EngineSequence
from engine.sequence import SequenceStatus
from engine.speculation.choice import NO_DRAFTERS
from engine.speculation.speculator import Speculator
from engine.speculation.verification.base import Bounds, Verified
from engine.speculation.verification.registry import create_verifier
from engine.stats import engine_stats
from engine.step import StepRecorder
from engine.step_cost import StepCost
from engine.stopping import finish_reason

# What a handover has begun and has to end itself.
_OF_HANDOVERS = (SequenceStatus.ASKING, SequenceStatus.RESERVED)

# Steps' worth of prompt tokens that a burst may run unbounded after its first sequence decodes.
_BURST_STEPS = 4


class LLMEngine:
    """One model, one KV pool, one scheduler. See `engine.api.Engine` for the methods.

    Args:
        model: the model, on the pool's device.
        kv: the pool, [blocks, layers of a group, 2, kv_heads, block_size, head_dim]; block 0 is scratch, so
            it has one block more than can be handed out.
        config: settings; model_dir, dtype, num_blocks, kv_memory_bytes, threads, attention_backend and
            device are for those who made `model` and `kv`.
        hasher: names full blocks.
        grammars: compiles grammars for the model's vocabulary; without it requests with one are refused.
        clock: monotonic seconds, by which sequences are timed and steps and copies measured.
        speculator: guesses tokens ahead; None for a token a step.

    Attributes:
        max_model_len: most tokens of prompt and answer together: the configured limit, or where that is
            0 the model's own, or what the pool holds if that is less.

    Raises:
        ValueError: the configured `max_model_len` exceeds the model's or the pool, or the pool's block
            size is not the configured one; or a limit is out of its range.
        KvMemoryError: the memory to swap to is not there.
    """

    def __init__(
        self,
        model: CausalLM,
        kv: torch.Tensor,
        config: EngineConfig,
        hasher: BlockHasher,
        grammars: GrammarCompiler | None = None,
        clock: Callable[[], float] = time.monotonic,
        speculator: Speculator | None = None,
    ) -> None:
        if kv.shape[4] != config.block_size:
            raise ValueError(f"the pool's blocks hold {kv.shape[4]} tokens, not {config.block_size}")
        num_blocks = kv.shape[0] - 1
        self.max_model_len = max_model_len(model.config, config, num_blocks)
        self._limits = RequestLimits(model.config.vocab_size, self.max_model_len)
        self._vocab_size = model.config.vocab_size
        self._eos_token_ids = model.config.eos_token_ids
        windows = [group.window for group in model.config.layer_groups]
        self._blocks = BlockManager(
            num_blocks=num_blocks,
            block_size=config.block_size,
            max_pages=-(-self.max_model_len // config.block_size),
            hasher=hasher if config.enable_prefix_cache else None,
            # A window as long as every context is none.
            windows=[window if window < self.max_model_len else 0 for window in windows],
        )
        self._speculator = speculator
        self._drafters = NO_DRAFTERS if speculator is None else speculator.drafters
        self._clock = clock
        self._cost = StepCost()
        self._swap = SwapSpace(
            HostPool(kv, config.swap_memory_bytes), lambda: self._cost.prefill_s_per_token, clock
        )
        self._scheduler = Scheduler(
            self._blocks,
            PrefillBudget(self._cost, config.max_decode_slowdown, _BURST_STEPS * config.max_batched_tokens),
            self._swap,
            max_batched_tokens=config.max_batched_tokens,
            max_running=config.max_running,
            prefill_chunk=config.prefill_chunk,
            wanted_drafts=None if speculator is None else speculator.wanted,
            complete=self._drafters.complete if self._drafters.keeps_kv else None,
            reruns_last=self._drafters.keeps_kv,
        )
        bounds = Bounds(model.config.eos_token_ids, self.max_model_len)
        self._runner = ModelRunner(
            model,
            kv,
            self._blocks.tables,
            create_verifier(config.speculation.verification, Sampler(grammars), bounds),
            self._drafters.points,
        )
        self._grammars = grammars
        self._check_each_step = config.check_invariants
        self._sequences: dict[str, EngineSequence] = {}
        # Adopted since the last step: their first tokens are still to be emitted.
        self._adopted: list[tuple[EngineSequence, TokenLogprobs | None]] = []
        self._arrivals = count()
        self._recorder = StepRecorder(config.block_size, self._blocks.num_groups, clock)

    def submit(self, request: EngineRequest) -> None:
        """Prefill and decode here. Raises RequestTooLargeError, ValueError for a known id or bad tokens."""
        self._scheduler.add(self._new_sequence(request, hold=False))

    def submit_prefill(self, request: EngineRequest) -> None:
        """Prefill, draw one token, then hold the blocks until `release`. Raises as `submit`."""
        self._scheduler.add(self._new_sequence(request, hold=True))

    def release(self, request_id: str) -> None:
        """Ends a held prefill, finished or not, and frees its blocks."""
        sequence = self._sequences.get(request_id)
        if sequence is not None and sequence.hold:
            self._end(sequence)

    def reserve(self, request: EngineRequest) -> Reservation | None:
        """Sets blocks aside for the whole context and the next block; None where there is no room now.

        After a None the request keeps its place in line: ask again, or `abandon`. Raises as `submit`.
        """
        sequence = self._sequences.get(request.request_id)
        if sequence is None or sequence.status is not SequenceStatus.ASKING:
            sequence = self._new_sequence(request, hold=False)
            # They come with the handover.
            sequence.prompt_logprobs = None
        unread = self._scheduler.reserve(sequence)
        if unread is None:
            return None
        context_blocks = self._blocks.pages_for(request.num_context_tokens) * self._blocks.num_groups
        return Reservation(
            request_id=request.request_id,
            block_ids=tuple(sequence.blocks[:context_blocks]),
            num_unread_tokens=unread,
        )

    def adopt(
        self,
        request_id: str,
        first_token_id: int,
        first_logprobs: TokenLogprobs | None = None,
        carried: bytes = b"",
    ) -> None:
        """The reserved blocks hold valid KV: publish them and decode on from `first_token_id`.

        Raises ValueError, changing nothing, where there is no such reservation or token, or where the drafter
        cannot use what is `carried`.
        """
        sequence = self._sequences.get(request_id)
        if sequence is None or sequence.status is not SequenceStatus.RESERVED:
            raise ValueError(f"nothing is reserved for {request_id}")
        self._limits.check_tokens((first_token_id,))
        if (first_logprobs is None) != (sequence.request.sampling.logprobs is None):
            raise ValueError("log probabilities of the first token come exactly where they are asked for")
        computed, sequence.num_computed = sequence.num_computed, sequence.num_tokens
        try:
            self._drafters.adopt(sequence, carried)
            sequence.rules.advance(first_token_id)
        except ValueError:
            sequence.num_computed = computed
            sequence.draft_states.clear()
            raise
        self._blocks.seal(sequence)
        sequence.token_ids.append(first_token_id)
        sequence.context_done = True
        self._scheduler.run(sequence)
        self._adopted.append((sequence, first_logprobs))

    def abandon(self, request_id: str, unsettled: frozenset[int] = frozenset()) -> None:
        """Gives up a reservation, or the wait for one. Blocks in `unsettled` are quarantined until `settle`.

        Raises ValueError, changing nothing, where one of them is no block of the reservation that is to
        be read.
        """
        sequence = self._sequences.get(request_id)
        if sequence is not None and sequence.status in _OF_HANDOVERS:
            # Nobody vouches for what was read into them: it may be NaN.
            self._runner.scrub(self._blocks.free(sequence, unsettled))
            self._end(sequence)

    def settle(self, block_ids: Sequence[int]) -> None:
        """Frees quarantined blocks. Raises ValueError, changing nothing, where one is not quarantined."""
        self._blocks.pool.settle(block_ids)
        self._runner.scrub(block_ids)

    def cancel(self, request_id: str) -> None:
        """Ends a sequence and frees its blocks at once; a reservation, or the wait for one, is left alone."""
        sequence = self._sequences.get(request_id)
        if sequence is not None and sequence.status not in _OF_HANDOVERS:
            self._end(sequence)

    def has_work(self) -> bool:
        """Whether `step` would run, emit or report something."""
        return bool(self._adopted) or self._blocks.cache.has_events or self._scheduler.can_schedule()

    def step(self) -> StepOutput:
        """Schedules, runs and samples once, or emits the first tokens of what was adopted.

        Returns an empty output where nothing can run.

        Raises what the model raises when it fails whatever it is given; the engine is of no use then.
        """
        recorder = self._recorder
        recorder.begin()
        batch_size = num_tokens = 0
        if self._adopted:
            # They do not wait for a pass: their first tokens have waited for a transfer already.
            self._emit_adopted()
        else:
            schedule = self._scheduler.schedule(self._clock())
            if schedule.sequences:
                self._run(schedule)
            batch_size, num_tokens = len(schedule.sequences), schedule.num_tokens
        output = recorder.end(self._blocks.take_events(), batch_size, num_tokens)
        if self._check_each_step:
            self.check_invariants()
        return output

    def _run(self, schedule: Schedule) -> None:
        """One pass of the model, and what follows from it."""
        if self._speculator is not None:
            self._speculator.propose(schedule)
        start_s, start_unix_ns = self._clock(), time.time_ns()
        result = self._runner.run(schedule)
        end_unix_ns = time.time_ns()
        target_s = self._clock() - start_s
        failures, drawn_by_index = result.failures, result.drawn
        # Only a step that drew tokens has waited for the device, and only a sound one is typical.
        if drawn_by_index and not failures:
            decodes = schedule.num_decodes
            prompt_tokens = sum(schedule.counts[decodes:])
            self._cost.observe(decodes, prompt_tokens, target_s)
        went_on: list[tuple[int, EngineSequence, int]] = []
        for index, sequence in enumerate(schedule.sequences):
            if failures and (failure := failures.get(index)) is not None:
                self._recorder.failed(sequence, failure.message)
                self._fail(sequence, failure.kv_is_suspect)
                continue
            went_on.append((index, sequence, sequence.num_computed))
            sequence.grow(schedule.counts[index], drawn_by_index.get(index))
        if self._speculator is not None:
            for outcome in self._speculator.extend(schedule, result, went_on, target_s):
                self._recorder.verified(outcome.sequence, outcome.drafted, outcome.accepted)
        block_size = self._blocks.block_size
        for index, sequence, _ in went_on:
            sequence.recompute_last = False
            if sequence.num_computed >= (sequence.num_sealed + 1) * block_size:
                self._blocks.seal(sequence)
            if sequence.prompt_logprobs is not None:
                sequence.prompt_logprobs += result.prompt_logprobs.get(index, ())
            if self._blocks.has_windows:
                self._blocks.drop_behind_window(sequence)
            if sequence.hold:
                self._recorder.kv_written(sequence, start_unix_ns, end_unix_ns)
            drawn = drawn_by_index.get(index)
            if drawn is not None:
                self._took(sequence, drawn)
            if schedule.lookahead and sequence.blocks:
                self._blocks.trim(sequence)

    def stats(self) -> EngineStats:
        """Current gauges and totals."""
        stats = engine_stats(self._blocks.pool, self._scheduler, self._recorder, self._swap)
        speculator = self._speculator
        return stats if speculator is None else replace(stats, speculation=speculator.stats())

    def cached_block_hashes(self) -> list[bytes]:
        """Every block the prefix cache holds, parents before children: to publish anew after a loss."""
        return self._blocks.cache.hashes()

    def check_invariants(self) -> None:
        """Raises AssertionError naming the broken invariant."""
        sequences = self._sequences.values()
        self._blocks.check_invariants(s for s in sequences if s.blocks)
        self._scheduler.check_invariants()
        for status, queue in (
            (SequenceStatus.ASKING, self._scheduler.asking),
            (SequenceStatus.WAITING, self._scheduler.waiting),
            (SequenceStatus.RUNNING, self._scheduler.running),
        ):
            known = {s.request_id for s in sequences if s.status is status}
            require(known == {s.request_id for s in queue}, f"known {status.name} sequences are queued")
        require(all(s.status is not SequenceStatus.ENDED for s in sequences), "ended sequences are forgotten")
        require(
            all(
                bool(s.blocks) == (s.status not in (SequenceStatus.ASKING, SequenceStatus.WAITING))
                for s in sequences
            ),
            "all sequences but the asking and the waiting ones hold blocks",
        )

    def _new_sequence(self, request: EngineRequest, hold: bool) -> EngineSequence:
        if request.request_id in self._sequences:
            raise ValueError(f"request id {request.request_id} is in use")
        self._limits.check(request)
        rules = TokenRules(
            request.sampling,
            request.prompt_token_ids,
            request.resumed_token_ids,
            self._eos_token_ids,
            self._vocab_size,
            self._matcher(request),
        )
        sequence = EngineSequence(request, next(self._arrivals), hold, self._clock())
        sequence.rules = rules
        self._drafters.assign(sequence)
        self._sequences[request.request_id] = sequence
        return sequence

    def _matcher(self, request: EngineRequest) -> GrammarMatcher | None:
        if request.sampling.grammar is None:
            return None
        if self._grammars is None:
            raise ValueError("this engine takes no grammars: it was given no tokenizer")
        return self._grammars.compile(request.sampling.grammar).start()

    def _emit_adopted(self) -> None:
        adopted, self._adopted = self._adopted, []
        for sequence, logprobs in adopted:
            rules = sequence.rules
            reason = finish_reason(
                rules.params,
                sequence.token_ids[-1],
                sequence.next_index - 1,
                sequence.num_tokens,
                self._eos_token_ids,
                self.max_model_len,
                rules.grammar_complete,
            )
            self._emit(sequence, sequence.token_ids[-1:], () if logprobs is None else (logprobs,), reason)

    def _took(self, sequence: EngineSequence, drawn: Verified) -> None:
        """Reports what a pass drew for a sequence."""
        self._recorder.generated_tokens += len(drawn.token_ids)
        if not sequence.context_done:
            sequence.context_done = True
            self._recorder.prefill_done(sequence, self._drafters.carried(sequence) if sequence.hold else b"")
        if sequence.hold:
            self._scheduler.remove(sequence, SequenceStatus.HELD)
        self._emit(sequence, drawn.token_ids, drawn.logprobs or (), drawn.finish_reason)

    def _emit(
        self,
        sequence: EngineSequence,
        token_ids: Sequence[int],
        logprobs: Sequence[TokenLogprobs],
        reason: FinishReason | None,
    ) -> None:
        """Reports a sequence's last tokens and ends it where there is a reason; not a held one."""
        index = sequence.next_index - len(token_ids)
        self._recorder.tokens(sequence, index, token_ids, reason, logprobs)
        if reason is not None and not sequence.hold:
            self._end(sequence)

    def _fail(self, sequence: EngineSequence, kv_is_suspect: bool) -> None:
        blocks = list(sequence.blocks)
        freed = self._end(sequence)
        if kv_is_suspect:
            self._runner.scrub(freed + self._blocks.forget(blocks))

    def _end(self, sequence: EngineSequence) -> list[int]:
        """Forgets a sequence; returns the blocks that nobody wants any more."""
        self._scheduler.remove(sequence, SequenceStatus.ENDED)
        del self._sequences[sequence.request_id]
        self._adopted = [adopted for adopted in self._adopted if adopted[0] is not sequence]
        return self._blocks.free(sequence)
