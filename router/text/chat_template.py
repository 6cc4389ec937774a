"""Chats to prompts, through the model's own Jinja template.

The environment is the one that Hugging Face transformers documents for chat templates ("Writing a chat
template"): immutable sandbox, `trim_blocks`, `lstrip_blocks`, loop controls, `generation` blocks,
`raise_exception`, `strftime_now` and a `tojson` that does not escape HTML. Tests compare with transformers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from router.text.errors import ChatTemplateError, ModelFilesError
from router.text.tokenizer import read_json_object

# Where the last message's text ends: of two characters for private use, which no template looks for.
_MARK = "\ue000\uf8ff"
_SPECIAL_NAMES = (
    "bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token",
)  # fmt: skip


class _GenerationBlock(Extension):
    """`{% generation %}...{% endgeneration %}` marks text to train on; here it stands for its body."""

    tags = {"generation"}  # noqa: RUF012 - the base class declares it so

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _template_source(folder: Path, config: Mapping[str, object]) -> str | None:
    """`chat_template.jinja` first, then tokenizer_config.json: one string, or a list of named templates."""
    path = folder / "chat_template.jinja"
    if path.exists():
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise ModelFilesError(f"{path} cannot be read: {error}") from error
    template = config.get("chat_template")
    if isinstance(template, list):
        named = {item.get("name"): item.get("template") for item in template if isinstance(item, dict)}
        template = named.get("default")
    return template if isinstance(template, str) else None


def _special_tokens(config: Mapping[str, object]) -> dict[str, str]:
    """Special tokens by name: plain strings, or AddedToken objects with `content`."""
    found: dict[str, str] = {}
    for name in _SPECIAL_NAMES:
        value = config.get(name)
        if isinstance(value, dict):
            value = value.get("content")
        if isinstance(value, str):
            found[name] = value
    return found


class ChatTemplate:
    """One model's template. Immutable and shared by all requests.

    Args:
        source: the Jinja text; None for a model without a template.
        special_tokens: values of `bos_token`, `eos_token` and so on inside the template.
        origin: the folder, for messages.

    Attributes:
        source: the Jinja text.

    Raises ModelFilesError for a template that does not compile.
    """

    def __init__(self, source: str | None, special_tokens: Mapping[str, str], origin: str) -> None:
        self.source = source
        self._special_tokens = dict(special_tokens)
        self._template: jinja2.Template | None = None
        if source is not None:
            try:
                self._template = _environment().from_string(source)
            except jinja2.TemplateError as error:
                raise ModelFilesError(f"{origin}: the chat template does not compile: {error}") from error

    @classmethod
    def load(cls, folder: Path) -> ChatTemplate:
        """Reads a model folder; one without a template makes a ChatTemplate that refuses every chat.

        Raises ModelFilesError.
        """
        path = folder / "tokenizer_config.json"
        config = read_json_object(path) if path.exists() else {}
        return cls(_template_source(folder, config), _special_tokens(config), str(folder))

    def render(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        tools: Sequence[Mapping[str, object]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        variables: Mapping[str, object] = MappingProxyType({}),
        max_characters: int | None = None,
    ) -> str:
        """Prompt of a chat.

        Args:
            messages: as the template reads them.
            tools: the functions that the model may call, as OpenAI's form has them; None for none.
            add_generation_prompt: it ends where the assistant's answer begins.
            continue_final_message: it ends with the last message's text, cut off before what the template
                puts behind it.
            variables: of the template, beside those that are set here.
            max_characters: of the prompt; None for no limit.

        Raises ChatTemplateError where there is no template, the template refuses the messages, the prompt
        would be longer, or a variable has a name that is set here.
        """
        if self._template is None:
            raise ChatTemplateError("this model has no chat template; use completions with a plain prompt")
        said = [dict(message) for message in messages]
        own = {
            "messages": _marked(said) if continue_final_message else said,
            "tools": None if tools is None else [dict(tool) for tool in tools],
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
            **self._special_tokens,
        }
        taken = sorted(own.keys() & variables.keys())
        if taken:
            raise ChatTemplateError(f"chat_template_kwargs must not set {', '.join(taken)}")
        pieces: list[str] = []
        size = 0
        try:
            for piece in self._template.generate({**variables, **own}):
                pieces.append(piece)
                size += len(piece)
                if max_characters is not None and size > max_characters:
                    break
        # A template is the model author's program: it may fail in any way on messages it does not expect.
        except Exception as error:
            raise ChatTemplateError(f"the model's chat template refuses these messages: {error}") from error
        if max_characters is not None and size > max_characters:
            raise ChatTemplateError(
                f"the chat makes a prompt of more than {max_characters} characters, which cannot fit this "
                "model's context length"
            )
        prompt = "".join(pieces)
        return _up_to_mark(prompt) if continue_final_message else prompt


def _marked(messages: list[dict[str, object]]) -> list[dict[str, object]]:
    """The messages with a mark at the end of the last one's text. Raises ChatTemplateError."""
    content = messages[-1].get("content") if messages else None
    if not isinstance(content, str) or not content.strip():
        raise ChatTemplateError("the last message has no text that could be continued")
    return [*messages[:-1], {**messages[-1], "content": f"{content}{_MARK} "}]


def _up_to_mark(prompt: str) -> str:
    """The prompt up to the mark. Raises ChatTemplateError where the template left the text out."""
    begin = prompt.rfind(_MARK)
    if begin < 0:
        raise ChatTemplateError("the model's chat template leaves the last message's text out")
    # A template may write a text twice.
    text = prompt[:begin].replace(f"{_MARK} ", "").replace(_MARK, "")
    # A template that took the space behind the mark takes those that end a text, too.
    return text if prompt.startswith(" ", begin + len(_MARK)) else text.rstrip()
