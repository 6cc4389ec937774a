"""How one model's answers are read and constrained: fixed when the router starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from router.answer_reader import Reading
from router.errors import InvalidRequestError
from router.generation import GrammarSpec
from router.reasoning import think
from router.reasoning.registry import reads_reasoning
from router.structured.asked import AskedAnswer
from router.structured.compiler import GrammarCompiler, Observe
from router.structured.wanted import Reasoning, Wanted
from router.text.chat_template import ChatTemplate
from router.text.tokenizer import Tokenizer
from router.tools.asked import AskedCalls
from router.tools.parsers.base import CallForm
from router.tools.parsers.registry import call_form

# More than a marker and a line end, however they are cut into tokens.
_PROMPT_TAIL = 16


@dataclass(frozen=True, slots=True)
class AskedOfAnswers:
    """What a client asks of its answers, beside how their tokens are chosen.

    Attributes:
        answer: what the content must match; None for anything.
        calls: which functions may be called; None without tools.
        chat: the prompt is a chat, so reasoning and calls are told from the content.
        continued: text of the assistant's that the answer goes on with; empty for none.
        shows_reasoning: the client wants to see it.
    """

    answer: AskedAnswer | None = None
    calls: AskedCalls | None = None
    chat: bool = False
    continued: str = ""
    shows_reasoning: bool = True


class ModelReading:
    """Reads one model's answers.

    Args:
        tokenizer: the model's.
        template: the model's.
        tool_parser: one of `router.tools.parsers.registry.tool_parser_names`.
        reasoning_parser: one of `router.reasoning.registry.reasoning_parser_names`.
        observe: is told of each grammar, see `GrammarCompiler`.

    Attributes:
        markers: special tokens that keep their text in chats, because they are looked for in it.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: ChatTemplate,
        tool_parser: str = "auto",
        reasoning_parser: str = "auto",
        observe: Observe = lambda outcome, seconds: None,
    ) -> None:
        self._tokenizer = tokenizer
        self._form: CallForm | None = call_form(tool_parser, template.source)
        self._reasons = reads_reasoning(reasoning_parser, template.source)
        self._grammars = GrammarCompiler(
            tokenizer.serialized, tokenizer.num_ids, tokenizer.eos_token_ids, observe
        )
        looked_for = (think.START, think.END) if self._reasons else ()
        marks = (self._form.start, self._form.end) if self._form is not None else ()
        self.markers = tokenizer.special_among((*looked_for, *marks))

    async def warm(self) -> None:
        """Does before the first request what would hold up those that run beside it."""
        await self._grammars.warm()

    async def of(self, asked: AskedOfAnswers, prompt: Sequence[int]) -> tuple[Reading, GrammarSpec | None]:
        """How one request's answers are read and what they are held to.

        Args:
            asked: by the client.
            prompt: token ids; where they end decides whether reasoning has begun.

        Raises InvalidRequestError.
        """
        reasoning = self._reasoning(asked, prompt)
        calls = asked.calls
        if calls is not None and calls.demand == "none":
            calls = None
        if calls is not None and self._form is None:
            raise InvalidRequestError(
                "tools: this deployment reads no tool calls. Its model's chat template has no known form of "
                "them, or its tool_parser is 'none'.",
                "tools",
                "unsupported_parameter",
            )
        form = None if calls is None else self._form
        # What the template shows of the tools is not held to anything, and may be long.
        held = None if calls is None else replace(calls, offered="")
        wanted = Wanted(asked.answer, held, form, reasoning, self.markers)
        reading = Reading(
            reasoning=reasoning,
            shows_reasoning=asked.shows_reasoning,
            keep_space=not wanted.spaced,
            form=form,
            functions=frozenset() if calls is None else calls.names,
            single=calls is not None and not calls.parallel,
        )
        return reading, await self._grammars.resolve(wanted)

    def _reasoning(self, asked: AskedOfAnswers, prompt: Sequence[int]) -> Reasoning:
        if not (asked.chat and self._reasons):
            return "no"
        if asked.continued:
            within = asked.continued.rfind(think.START) > asked.continued.rfind(think.END)
            return "open" if within else "no"
        tail = self._tokenizer.decode(prompt[-_PROMPT_TAIL:], skip_special_tokens=False)
        return "open" if think.prompt_opens(tail) else "may"
