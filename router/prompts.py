"""Prompts of every form to token ids, with the limits of the model. Once, for both doors."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from router.errors import InvalidRequestError
from router.model_reading import ModelReading
from router.prompt_options import ChatOptions
from router.text.chat_template import ChatTemplate
from router.text.errors import ChatTemplateError
from router.text.tokenizer import INLINE_CHARACTERS, Tokenizer

# Chats of more messages are rendered in a thread, however short: about 1 ms of the event loop.
_INLINE_MESSAGES = 64


@dataclass(frozen=True, slots=True)
class ServedModel:
    """The one model of this router.

    Attributes:
        name: what clients call it.
        max_model_len: tokens of prompt and answer together.
        created: seconds since 1970, when the router began to serve it.
        reading: how its answers are read.
    """

    name: str
    tokenizer: Tokenizer
    chat_template: ChatTemplate
    max_model_len: int
    created: int
    reading: ModelReading


@dataclass(frozen=True, slots=True)
class TextPrompt:
    """A plain prompt. `param` names it in error messages."""

    text: str
    param: str = "prompt"
    add_special_tokens: bool = True


@dataclass(frozen=True, slots=True)
class TokenPrompt:
    """A prompt as token ids. `param` names it in error messages."""

    token_ids: tuple[int, ...]
    param: str = "prompt"


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A chat: messages with `role`, `content` and what else the model's template reads, and the tools."""

    messages: tuple[Mapping[str, object], ...]
    param: str = "messages"
    options: ChatOptions = field(default_factory=ChatOptions)
    tools: tuple[Mapping[str, object], ...] | None = None


Prompt = TextPrompt | TokenPrompt | ChatPrompt


def check_token_ids(token_ids: Sequence[int], vocab_size: int, param: str) -> None:
    """Raises InvalidRequestError for one that is not of the vocabulary."""
    # A prompt may be a million ids long: the loop over them must not be Python's.
    for token_id in (min(token_ids, default=0), max(token_ids, default=0)):
        if not 0 <= token_id < vocab_size:
            # A number of any length may have been sent.
            what = f"Token id {token_id}" if abs(token_id) < 2**64 else "A token id"
            raise InvalidRequestError(
                f"{what} is out of range; this model has the ids 0 to {vocab_size - 1}.",
                param,
                "invalid_token_id",
            )


class PromptReader:
    """Turns prompts into token ids for one model. Stateless."""

    def __init__(self, model: ServedModel) -> None:
        self._model = model
        longest = model.tokenizer.longest_token
        # A text with more characters has more tokens than fit, whatever they are.
        self._max_characters = None if longest is None else longest * model.max_model_len

    async def tokenize(self, prompt: Prompt, *, max_characters: int | None = None) -> tuple[int, ...]:
        """Token ids of one prompt, at least one, of whatever length.

        Args:
            prompt: of any form.
            max_characters: refuse a text with more before it is tokenized; None for no limit.

        Raises InvalidRequestError.
        """
        match prompt:
            case TextPrompt():
                self._check_length(prompt.text, max_characters, prompt.param)
                token_ids = tuple(
                    await self._model.tokenizer.encode(
                        prompt.text, add_special_tokens=prompt.add_special_tokens
                    )
                )
                # Tokens that the tokenizer adds by itself make no prompt.
                token_ids = token_ids if prompt.text else ()
            case TokenPrompt():
                token_ids = prompt.token_ids
                check_token_ids(token_ids, self._model.tokenizer.vocab_size, prompt.param)
            case ChatPrompt():
                text = await self._render(prompt, max_characters)
                token_ids = tuple(
                    await self._model.tokenizer.encode(
                        text, add_special_tokens=bool(prompt.options.add_special_tokens)
                    )
                )
        if not token_ids:
            raise InvalidRequestError("The prompt is empty.", prompt.param, "empty_prompt")
        return token_ids

    async def read(self, prompt: Prompt, truncate: int | None, max_tokens: int | None) -> tuple[int, ...]:
        """Token ids of one prompt, with room for an answer.

        Args:
            prompt: of any form.
            truncate: keep only so many tokens, the last ones; -1 for as many as fit; None for all.
            max_tokens: of the answer, as the client says.

        Raises InvalidRequestError where it does not fit.
        """
        max_model_len = self._model.max_model_len
        if truncate is None:
            token_ids = await self.tokenize(prompt, max_characters=self._max_characters)
        else:
            token_ids = self.cut(await self.tokenize(prompt), truncate, max_tokens)
        if len(token_ids) >= max_model_len:
            raise InvalidRequestError(
                f"The prompt has {len(token_ids)} tokens; this model's context length is "
                f"{max_model_len} tokens, prompt and answer together.",
                prompt.param,
                "context_length_exceeded",
            )
        return token_ids

    def cut(
        self, token_ids: tuple[int, ...], truncate: int, max_tokens: int | None = None
    ) -> tuple[int, ...]:
        """The last `truncate` tokens; -1 for as many as fit beside an answer of max_tokens, at least one."""
        if truncate < 0:
            truncate = max(1, self._model.max_model_len - max(1, max_tokens or 1))
        return token_ids[-truncate:]

    def text_of(
        self, prompt: Prompt, token_ids: Sequence[int], *, cut: bool, skip_special_tokens: bool
    ) -> str:
        """The prompt's text for an echo: as it was sent, or of its tokens where it was none or was cut."""
        if isinstance(prompt, TextPrompt) and not cut:
            return prompt.text
        return self._model.tokenizer.decode(token_ids, skip_special_tokens=skip_special_tokens)

    def _check_length(self, text: str, max_characters: int | None, param: str) -> None:
        if max_characters is not None and len(text) > max_characters:
            raise InvalidRequestError(
                f"The prompt has {len(text)} characters, more than can fit this model's context length of "
                f"{self._model.max_model_len} tokens, prompt and answer together.",
                param,
                "context_length_exceeded",
            )

    async def _render(self, prompt: ChatPrompt, max_characters: int | None) -> str:
        options = prompt.options
        texts = [value for message in prompt.messages for value in message.values() if isinstance(value, str)]
        size = sum(map(len, texts))
        continues = bool(options.continue_final_message)
        generates = options.add_generation_prompt

        def render() -> str:
            return self._model.chat_template.render(
                prompt.messages,
                tools=prompt.tools,
                add_generation_prompt=not continues if generates is None else generates,
                continue_final_message=continues,
                variables=options.chat_template_kwargs or {},
                max_characters=max_characters,
            )

        # Templates write tools and calls as JSON, of whatever size.
        nested = prompt.tools is not None or any("tool_calls" in message for message in prompt.messages)
        inline = not nested and size <= INLINE_CHARACTERS and len(prompt.messages) <= _INLINE_MESSAGES
        try:
            return render() if inline else await asyncio.to_thread(render)
        except ChatTemplateError as error:
            raise InvalidRequestError(str(error), prompt.param, "chat_template") from error
