"""Grammars by llguidance, over the vocabulary of a model's tokenizer.json."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from weakref import WeakValueDictionary

import numpy as np
import numpy.typing as npt
from llguidance import LLExecutor, LLMatcher, LLTokenizer
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask_par
from tokenizers import AddedToken, Tokenizer

from engine.api import GrammarKind, GrammarSpec
from engine.grammar.base import CompiledGrammar, GrammarError, GrammarMatcher
from grammars.compiling import MAX_SOURCE_CHARS, compiling_pool

_CACHED_GRAMMARS = 64


class GuidanceMatcher:
    """Implements `engine.grammar.base.GrammarMatcher`.

    Args:
        matcher: at the start of an answer; belongs to this object.
        eos_token_ids: tokens that end an answer.
        ended_mask: the library's bit mask of an answer that can only end.
    """

    __slots__ = ("_ended", "_ended_mask", "_eos_token_ids", "matcher")

    def __init__(self, matcher: LLMatcher, eos_token_ids: frozenset[int], ended_mask: bytes) -> None:
        self.matcher = matcher
        self._eos_token_ids = eos_token_ids
        self._ended_mask = ended_mask
        # The library does not count an EOS among the tokens that it can roll back, so it never sees one.
        self._ended = 0

    @property
    def is_complete(self) -> bool:
        """See `engine.grammar.base.GrammarMatcher`."""
        if self._ended:
            return True
        # Not `is_stopped`: after a rollback it may be told late.
        return self.matcher.is_accepting() and self.matcher.compute_bitmask() == self._ended_mask

    def advance(self, token_id: int) -> None:
        """See `engine.grammar.base.GrammarMatcher`."""
        if token_id in self._eos_token_ids and (self._ended or self.matcher.is_accepting()):
            self._ended += 1
            return
        if self._ended or self.matcher.try_consume_tokens([token_id]) != 1:
            why = _first_line(self.matcher.get_error()) if self.matcher.is_error() else "it does not match"
            raise GrammarError(f"token {token_id} cannot follow in the answer's grammar: {why}")

    def rollback(self, count: int) -> None:
        """See `engine.grammar.base.GrammarMatcher`."""
        ends = min(count, self._ended)
        self._ended -= ends
        if count > ends and not self.matcher.rollback(count - ends):
            raise GrammarError(_first_line(self.matcher.get_error()))


class _Compiled:
    """Implements `engine.grammar.base.CompiledGrammar`: a matcher that never moves, copied for answers."""

    __slots__ = ("__weakref__", "_ended_mask", "_eos_token_ids", "_matcher")

    def __init__(self, matcher: LLMatcher, eos_token_ids: frozenset[int], ended_mask: bytes) -> None:
        self._matcher = matcher
        self._eos_token_ids = eos_token_ids
        self._ended_mask = ended_mask

    def start(self) -> GrammarMatcher:
        """See `engine.grammar.base.CompiledGrammar`."""
        return GuidanceMatcher(self._matcher.deep_copy(), self._eos_token_ids, self._ended_mask)


class GuidanceCompiler:
    """Implements `engine.grammar.base.GrammarCompiler`.

    What was compiled is kept while somebody holds it, and the last 64 of them besides. Compiling is done in
    two threads of its own: their stacks are large, for a chain of rules makes the library recurse.

    Args:
        tokenizer_file: the model's tokenizer.json.
        vocab_size: the model's, which may be larger than the tokenizer's.
        eos_token_ids: the model's.
        threads: that masks are computed with.

    Raises:
        ValueError: the tokenizer cannot be read, or is of a kind that the library does not know.
    """

    def __init__(
        self, tokenizer_file: Path, vocab_size: int, eos_token_ids: frozenset[int], threads: int = 1
    ) -> None:
        self._vocab_size = vocab_size
        self._eos_token_ids = eos_token_ids
        tokenizer = _read(tokenizer_file)
        # The library wants an EOS. This one is never allowed.
        self._stand_in = None if eos_token_ids else _add_stand_in(tokenizer)
        eos = sorted(eos_token_ids) if self._stand_in is None else [self._stand_in]
        self._num_ids = max(vocab_size, tokenizer.get_vocab_size(with_added_tokens=True))
        self._tokenizer = LLTokenizer(tokenizer.to_str(), n_vocab=self._num_ids, eos_token=eos)
        self._executor = LLExecutor(threads)
        ended = allocate_token_bitmask(1, self._num_ids)
        ended[:] = 0
        for token_id in eos:
            ended.view(np.uint32)[0, token_id // 32] |= np.uint32(1 << (token_id % 32))
        self._ended_mask = ended.tobytes()
        self._lock = threading.Lock()
        # Both guarded by the lock.
        self._alive: WeakValueDictionary[GrammarSpec, _Compiled] = WeakValueDictionary()
        self._recent: OrderedDict[GrammarSpec, _Compiled] = OrderedDict()
        self._pool = compiling_pool()

    def compile(self, spec: GrammarSpec) -> CompiledGrammar:
        """See `engine.grammar.base.GrammarCompiler`."""
        with self._lock:
            compiled = self._alive.get(spec)
            if compiled is not None:
                self._keep(spec, compiled)
                return compiled
        compiled = self._pool.submit(self._compile, spec).result()
        with self._lock:
            compiled = self._alive.setdefault(spec, compiled)
            self._keep(spec, compiled)
        return compiled

    def allowed(self, matchers: Sequence[GrammarMatcher]) -> npt.NDArray[np.bool_]:
        """See `engine.grammar.base.GrammarCompiler`."""
        own = [matcher for matcher in matchers if isinstance(matcher, GuidanceMatcher)]
        assert len(own) == len(matchers), "matchers come from this compiler"
        bits = allocate_token_bitmask(len(own), self._num_ids)
        fill_next_token_bitmask_par(self._executor, [(m.matcher, i) for i, m in enumerate(own)], bits)
        for row, matcher in enumerate(own):
            if matcher.matcher.is_error():
                bits[row] = 0
        if self._stand_in is not None:
            bits.view(np.uint32)[:, self._stand_in // 32] &= ~np.uint32(1 << (self._stand_in % 32))
        allowed = np.unpackbits(bits.view(np.uint8), axis=1, count=self._vocab_size, bitorder="little")
        return allowed.view(np.bool_)

    def close(self) -> None:
        """Ends the threads."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _compile(self, spec: GrammarSpec) -> _Compiled:
        if len(spec.source) > MAX_SOURCE_CHARS:
            raise GrammarError(
                f"the grammar has {len(spec.source)} characters, but may have {MAX_SOURCE_CHARS}"
            )
        matcher = LLMatcher(self._tokenizer, _grammar(spec), log_level=0)
        if matcher.is_error():
            raise GrammarError(f"invalid {spec.kind}: {matcher.get_error().strip()}")
        return _Compiled(matcher, self._eos_token_ids, self._ended_mask)

    def _keep(self, spec: GrammarSpec, compiled: _Compiled) -> None:
        self._recent[spec] = compiled
        self._recent.move_to_end(spec)
        if len(self._recent) > _CACHED_GRAMMARS:
            self._recent.popitem(last=False)


def _grammar(spec: GrammarSpec) -> str:
    match spec.kind:
        case GrammarKind.REGEX:
            return LLMatcher.grammar_from_regex(spec.source)
        case GrammarKind.LARK:
            return LLMatcher.grammar_from_lark(spec.source)
        case GrammarKind.JSON_SCHEMA:
            try:
                schema = json.loads(spec.source)
            except (ValueError, RecursionError) as error:
                raise GrammarError(f"invalid json_schema: {error}") from error
            if not isinstance(schema, dict | bool):
                raise GrammarError("invalid json_schema: it must be an object or a boolean")
            # Written anew: what the library gets is one schema and nothing beside it.
            return LLMatcher.grammar_from_json_schema(json.dumps(schema))


def _read(tokenizer_file: Path) -> Tokenizer:
    try:
        tokenizer = Tokenizer.from_file(str(tokenizer_file))
    # The library raises bare Exception.
    except Exception as error:
        raise ValueError(f"{tokenizer_file.name} cannot be read: {error}") from error
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def _add_stand_in(tokenizer: Tokenizer) -> int:
    tokenizer.add_special_tokens([AddedToken("<|kvrelay:end|>", special=True, normalized=False)])
    token_id = tokenizer.token_to_id("<|kvrelay:end|>")
    assert token_id is not None, "it was just added"
    return token_id


def _first_line(message: str) -> str:
    return message.strip().partition("\n")[0]
