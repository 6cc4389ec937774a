"""Proves before dispatch, off the event loop and with a cache, that the engine will take a grammar."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

from llguidance import LLMatcher, LLTokenizer

from grammars.compiling import MAX_SOURCE_CHARS, compiling_pool
from router.errors import InvalidRequestError
from router.generation import GrammarSpec
from router.structured.json_schema import CheckedSchema, Place, Schema, moved_down
from router.structured.language import guided
from router.structured.wanted import Draft, Wanted, check_sizes, draft

CACHED = 256
# Subschemas that are compiled one by one to find the one at fault.
_MAX_SEARCHED = 200
_WHOLE = "kv_whole"

# Told how a wish ended, and after how many seconds.
Observe = Callable[[Literal["cached", "compiled", "refused"], float], None]


class GrammarCompiler:
    """Grammars of one model's requests.

    Args:
        tokenizer_json: gives the model's tokenizer as the `tokenizers` library writes it.
        vocab_size: rows of the model's embedding.
        eos_token_ids: ids at which the model ends an answer.
        observe: is told how each wish ended ("cached", "compiled", "refused") and how long it took, seconds.
    """

    def __init__(
        self,
        tokenizer_json: Callable[[], str],
        vocab_size: int,
        eos_token_ids: frozenset[int],
        observe: Observe,
    ) -> None:
        self._observe = observe
        self._tokenizer_json = tokenizer_json
        self._vocab_size = vocab_size
        self._eos = sorted(eos_token_ids)
        self._tokenizer: LLTokenizer | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._running: dict[Wanted, asyncio.Task[GrammarSpec | InvalidRequestError]] = {}
        self._cache: OrderedDict[Wanted, GrammarSpec | InvalidRequestError] = OrderedDict()

    async def resolve(self, wanted: Wanted) -> GrammarSpec | None:
        """The grammar that keeps answers to what is wanted; None where nothing is.

        Raises InvalidRequestError, with the path of the element at fault.
        """
        if not wanted.constrained:
            return None
        check_sizes(wanted)
        begun = time.monotonic()
        found = self._cache.get(wanted)
        known = found is not None
        if found is None:
            running = self._running.get(wanted)
            if running is None:
                running = self._running[wanted] = asyncio.create_task(self._run(wanted))
                running.add_done_callback(lambda _: self._running.pop(wanted, None))
            # Others may wait for it when this request is given up.
            found = await asyncio.shield(running)
        else:
            self._cache.move_to_end(wanted)
        seconds = time.monotonic() - begun
        if isinstance(found, InvalidRequestError):
            self._observe("refused", seconds)
            raise InvalidRequestError(found.message, found.param, found.code)
        self._observe("cached" if known else "compiled", seconds)
        return found

    async def warm(self) -> None:
        """Makes the tokenizer's tables, which hold up everything else in the process for a moment."""
        await asyncio.get_running_loop().run_in_executor(self._executor(), self._shared_tokenizer)

    async def _run(self, wanted: Wanted) -> GrammarSpec | InvalidRequestError:
        found = await asyncio.get_running_loop().run_in_executor(self._executor(), self._compile, wanted)
        self._cache[wanted] = found
        if len(self._cache) > CACHED:
            self._cache.popitem(last=False)
        return found

    def _executor(self) -> ThreadPoolExecutor:
        if self._pool is None:
            self._pool = compiling_pool()
        return self._pool

    def _compile(self, wanted: Wanted) -> GrammarSpec | InvalidRequestError:
        try:
            drafted = draft(wanted)
        except InvalidRequestError as error:
            return error
        if len(drafted.spec.source) > MAX_SOURCE_CHARS:
            return InvalidRequestError(
                f"{drafted.param} makes a grammar of {len(drafted.spec.source)} characters; "
                f"{MAX_SOURCE_CHARS} are allowed.",
                drafted.param,
                "invalid_grammar",
            )
        problem = self._problem(_engine_form(drafted.spec))
        return drafted.spec if problem is None else self._error(drafted, problem)

    def _problem(self, grammar: str) -> str | None:
        matcher = LLMatcher(self._shared_tokenizer(), grammar, log_level=0)
        if not matcher.is_error() and not any(matcher.compute_bitmask()) and not matcher.is_error():
            return "no answer matches it"
        return matcher.get_error() if matcher.is_error() else None

    def _shared_tokenizer(self) -> LLTokenizer:
        if self._tokenizer is None:
            # A model without EOS never ends an answer by itself; the library wants one all the same.
            self._tokenizer = LLTokenizer(
                self._tokenizer_json(), n_vocab=self._vocab_size, eos_token=self._eos or [0]
            )
        return self._tokenizer

    def _error(self, drafted: Draft, problem: str) -> InvalidRequestError:
        for checked in drafted.schemas:
            found = self._at_fault(checked)
            if found is not None:
                place, reason = found
                return InvalidRequestError(
                    f"Invalid {place.path!r}: {reason}.", place.path, "invalid_json_schema"
                )
        text = _first_lines(problem)
        return InvalidRequestError(f"Invalid {drafted.param!r}: {text}.", drafted.param, "invalid_grammar")

    def _at_fault(self, checked: CheckedSchema) -> tuple[Place, str] | None:
        """The innermost subschema that fails for the whole's own reason, or else for one of its own."""
        reason = self._schema_problem(checked.schema)
        if reason is None:
            return None
        whole = moved_down(checked.schema, _WHOLE)
        meant = self._schema_problem(False)
        other: tuple[Place, str] | None = None
        for place in sorted(checked.places, key=lambda each: -each.pointer.count("/"))[:_MAX_SEARCHED]:
            part: Schema = {"$defs": {_WHOLE: whole}, "$ref": f"#/$defs/{_WHOLE}{place.pointer}"}
            problem = self._schema_problem(part)
            if problem == reason and place.pointer:
                return place, reason
            if problem not in (None, meant) and other is None:
                other = place, problem or reason
        return other or (checked.places[0], reason)

    def _schema_problem(self, schema: Schema) -> str | None:
        problem = self._problem(_engine_form(GrammarSpec("json_schema", guided(schema))))
        return None if problem is None else _first_lines(problem)


def _engine_form(spec: GrammarSpec) -> str:
    match spec.kind:
        case "json_schema":
            return LLMatcher.grammar_from_json_schema(spec.source)
        case "regex":
            return LLMatcher.grammar_from_regex(spec.source)
        case "lark":
            return LLMatcher.grammar_from_lark(spec.source)


def _first_lines(problem: str) -> str:
    """The message without the excerpt of the grammar, which is ours and not the client's."""
    lines = [line.strip() for line in problem.splitlines()]
    kept = [line for line in lines if line and "|" not in line and set(line) != {"^"}]
    return " ".join(kept).removesuffix(".")[:500]
