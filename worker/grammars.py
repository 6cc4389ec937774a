"""Grammars are compiled before the engine sees their requests, beside its thread and the event loop."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

from engine.api import EngineRequest
from engine.grammar.base import CompiledGrammar, GrammarCompiler, GrammarError
from worker.admission import Refusal, RefusedError

# As many as the compiler has threads for; who comes meanwhile waits.
_THREADS = 2


class Grammars:
    """Compiles the grammars of requests that come in.

    Args:
        compiler: None where the model has no tokenizer to compile for: such requests are refused.
        max_waiting: most requests that wait for their grammar.
    """

    def __init__(self, compiler: GrammarCompiler | None, max_waiting: int) -> None:
        self._compiler = compiler
        self._max_waiting = max_waiting
        self._waiting = 0
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="grammars")

    async def compiled(self, request: EngineRequest) -> CompiledGrammar | None:
        """The compiled grammar of a request, None where it has none.

        The engine finds it by itself, at once, as long as the caller holds it.

        Raises:
            RefusedError: INVALID with the compiler's words, or QUEUE_FULL.
        """
        spec = request.sampling.grammar
        if spec is None:
            return None
        if self._compiler is None:
            raise RefusedError(Refusal.INVALID, "this worker takes no grammars: its model has no tokenizer")
        if self._waiting >= self._max_waiting:
            raise RefusedError(Refusal.QUEUE_FULL, f"{self._waiting} grammars wait to be compiled")
        self._waiting += 1
        try:
            events = asyncio.get_running_loop()
            return await events.run_in_executor(self._pool, self._compiler.compile, spec)
        except GrammarError as error:
            raise RefusedError(Refusal.INVALID, str(error)) from error
        finally:
            self._waiting -= 1

    async def is_answered(self, request: EngineRequest, grammar: CompiledGrammar) -> bool:
        """Whether the tokens that a request resumes are its whole answer: nothing can follow but an EOS.

        The attempt before ended with them, but nobody was told. The engine would look for one token more,
        and a model without EOS has none.

        Raises:
            RefusedError: INVALID, the tokens do not match.
        """
        if not request.resumed_token_ids:
            return False

        def follow() -> bool:
            matcher = grammar.start()
            for token_id in request.resumed_token_ids:
                matcher.advance(token_id)
            return matcher.is_complete

        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, follow)
        except GrammarError as error:
            raise RefusedError(Refusal.INVALID, str(error)) from error

    def close(self) -> None:
        """Ends the threads after what they are at."""
        self._pool.shutdown(wait=False, cancel_futures=True)
