"""What may be asked of a generation, and the request message that it becomes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from kvrelay._chat import ANSWER_OPTIONS, CHAT_OPTIONS, Messages, Tools, build, chat_of, structured_outputs
from kvrelay.errors import InvalidRequestError
from kvrelay.v1 import inference_pb2


class PromptOptions(TypedDict, total=False):
    """Keyword arguments that say how a prompt becomes tokens. What is absent or None takes its default.

    Attributes:
        add_special_tokens: add what the tokenizer puts around every text. Default true for a plain prompt,
            false for a chat.
        truncate_prompt_tokens: keep only so many tokens of the prompt, the last ones, at least 1; -1 for as
            many as fit beside max_tokens. Default: all.
        add_generation_prompt: of a chat: end the prompt with what begins the assistant's message. Default
            true, or false with continue_final_message.
        continue_final_message: of a chat: the answer goes on with the last message's text. Default false.
        chat_template_kwargs: of a chat: variables of the model's template, up to 64 of them, JSON values.
        tools: of a chat: functions that the model may call, up to 128. Default none.
        tool_choice: of a chat: "none", "auto" or "required". Default "auto" with tools.
        named_tool: of a chat: the function that must be called; excludes tool_choice.
    """

    add_special_tokens: bool | None
    truncate_prompt_tokens: int | None
    add_generation_prompt: bool | None
    continue_final_message: bool | None
    chat_template_kwargs: Mapping[str, Any] | None
    tools: Tools | None
    tool_choice: str | None
    named_tool: str | None


class GenerateOptions(PromptOptions, total=False):
    """Keyword arguments of `generate`, `stream` and `chat`. What is absent or None takes its default.

    Attributes:
        model: served name; default: the one model that is served.
        temperature: [0, 2]; 0 is greedy. Default 1.
        top_p: draw from the smallest set of tokens that reaches this probability; (0, 1]. Default 1, off.
        top_k: draw among so many tokens; -1 and 0 are off. Default 0.
        min_p: draw among tokens at least so many times as likely as the likeliest; [0, 1]. Default 0, off.
        typical_p: locally typical sampling, (0, 1]. Default 1, off.
        presence_penalty: taken off the logits of tokens that the answer has; [-2, 2]. Default 0.
        frequency_penalty: taken off as often as the answer has the token; [-2, 2]. Default 0.
        repetition_penalty: divides or multiplies logits of tokens in prompt or answer; (0, 100]. Default 1,
            off.
        logit_bias: what is added to the logits of token ids, [-100, 100]; up to 1024 ids. Default none.
        bad_words: up to 256 texts, each up to 256 characters, whose tokens the answer never contains in
            sequence. Default none.
        allowed_token_ids: the only tokens that may be drawn, up to 65536. Default: all.
        seed: same seed, same tokens; [0, 2^64 - 1]. Default: drawn by the router.
        max_tokens: most tokens of the answer; 0 only scores the prompt (with prompt_logprobs, or echo and
            logprobs). Default: what the context length leaves.
        min_tokens: no end before so many. Default 0.
        stop: a string, or up to 16, each up to 1024 characters, that end the answer; not part of it.
        stop_token_ids: up to 256 tokens that end the answer.
        include_stop_str_in_output: what ended the answer is part of its text. Default false.
        ignore_eos: go on after the model's end of sequence. Default false.
        skip_special_tokens: special tokens have no text. Default true.
        spaces_between_special_tokens: as the tokenizer has it; those in use have none. Default true.
        n: number of choices, 1 to 16. Default 1.
        best_of: generate so many, n to 16, and return the n likeliest; they come when all have ended.
            Default n.
        echo: the text begins with the prompt's; with logprobs those of its tokens are reported too, as
            prompt_logprobs. Default false.
        logprobs: report log probabilities of the answer's tokens, and of so many likeliest ones; 0 to 20.
            Default: none.
        prompt_logprobs: the same for the prompt's tokens. Default: none.
        parallel_tool_calls: of a chat: several calls may come; false ends the answer with the first. Default
            true.
        include_reasoning: of a chat: report what a model thinks before it answers. Default true.
        json_schema: the answer is JSON that matches this schema: an object, a boolean or JSON text. At most
            one of this and the next four may be given.
        json_object: the answer is a JSON object. Default false.
        regex: the whole answer matches this regular expression.
        choice: the answer is one of these texts, up to 1024.
        grammar: the answer matches this Lark or GBNF grammar.
        strict: with json_schema: refuse schemas that OpenAI's strict mode refuses. Default false.
        priority: requests with a lower one run first; a signed 32-bit number. Default 0.
        speculation: how tokens are guessed ahead, a mapping with `method` ("none", "ngram", "suffix", or the
            server's own) and `num_speculative_tokens` (most guesses one behind the other, 1 to 63), either of
            them or both. Default: as the server was deployed.
        timeout: seconds for the whole request, retries included. Default: the client's.
        request_id: name in logs and traces. Default: made by the router.
        cache_salt: prompts share cached KV only under an equal salt; up to 256 characters. Default empty.
        trace: ask for spans in the timeline. Default false.
    """

    model: str | None
    temperature: float | None
    top_p: float | None
    top_k: int | None
    min_p: float | None
    typical_p: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    repetition_penalty: float | None
    logit_bias: Mapping[int, float] | None
    bad_words: Sequence[str] | None
    allowed_token_ids: Sequence[int] | None
    seed: int | None
    max_tokens: int | None
    min_tokens: int | None
    stop: str | Sequence[str] | None
    stop_token_ids: Sequence[int] | None
    include_stop_str_in_output: bool | None
    ignore_eos: bool | None
    skip_special_tokens: bool | None
    spaces_between_special_tokens: bool | None
    n: int | None
    best_of: int | None
    echo: bool | None
    logprobs: int | None
    prompt_logprobs: int | None
    parallel_tool_calls: bool | None
    include_reasoning: bool | None
    json_schema: Mapping[str, Any] | bool | str | None
    json_object: bool | None
    regex: str | None
    choice: Sequence[str] | None
    grammar: str | None
    strict: bool | None
    priority: int | None
    speculation: Mapping[str, Any] | None
    timeout: float | None
    request_id: str | None
    cache_salt: str | None
    trace: bool | None


_OF_REQUEST = ("model", "request_id", "cache_salt", "trace", "priority", "include_reasoning", "speculation")
_OF_SAMPLING = frozenset(field.name for field in inference_pb2.SamplingOptions.DESCRIPTOR.fields)
_OF_PROMPT = frozenset(field.name for field in inference_pb2.PromptOptions.DESCRIPTOR.fields)


def _set_input(
    request: inference_pb2.GenerateRequest | inference_pb2.TokenizeRequest,
    prompt: str | None,
    messages: Messages | None,
    options: Mapping[str, Any],
) -> None:
    of_chat = {name: value for name, value in options.items() if name in CHAT_OPTIONS and value is not None}
    if messages is None and of_chat:
        raise InvalidRequestError(f"{next(iter(of_chat))} is for a chat")
    if prompt is not None:
        request.MergeFrom(build(type(request), "prompt", prompt))
    elif messages is not None:
        # CopyFrom alone would leave an empty chat unset.
        request.chat.SetInParent()
        request.chat.CopyFrom(chat_of(messages, of_chat))


def _set_prompt_option(options: inference_pb2.PromptOptions, name: str, value: Any) -> None:
    if value is None:
        return
    if name == "chat_template_kwargs":
        try:
            options.chat_template_kwargs.update(value)
        except (AttributeError, TypeError, ValueError) as error:
            raise InvalidRequestError(f"{name}: {error}") from error
    else:
        options.MergeFrom(build(inference_pb2.PromptOptions, name, value))


def _require_one(**inputs: object) -> None:
    given = [name for name, value in inputs.items() if value is not None]
    if len(given) != 1:
        names = ", ".join(inputs)
        raise InvalidRequestError(f"exactly one of {names} is needed, not {', '.join(given) or 'none'}")


def generate_request(
    prompt: str | None,
    messages: Messages | None,
    token_ids: Sequence[int] | None,
    options: GenerateOptions,
) -> inference_pb2.GenerateRequest:
    """The message for one generation.

    Raises:
        InvalidRequestError: not exactly one input, or a value that the message cannot hold.
        TypeError: an option that does not exist.
    """
    _require_one(prompt=prompt, messages=messages, token_ids=token_ids)
    request = inference_pb2.GenerateRequest()
    _set_input(request, prompt, messages, options)
    outputs = structured_outputs(
        {name: value for name, value in options.items() if name in ANSWER_OPTIONS},
        bool(options.get("strict")),
    )
    if outputs is not None:
        request.structured_outputs.CopyFrom(outputs)
    if token_ids is not None:
        request.token_ids.SetInParent()
        request.token_ids.ids.extend(build(inference_pb2.TokenIds, "ids", token_ids).ids)
    for name, value in options.items():
        if name in ("stop", "bad_words") and isinstance(value, str):
            value = [value]
        if name in _OF_SAMPLING:
            if value is not None:
                request.sampling.MergeFrom(build(inference_pb2.SamplingOptions, name, value))
        elif name in _OF_PROMPT:
            _set_prompt_option(request.prompt_options, name, value)
        elif name in _OF_REQUEST:
            request.MergeFrom(build(inference_pb2.GenerateRequest, name, value))
        elif name not in ("timeout", "strict", *CHAT_OPTIONS, *ANSWER_OPTIONS):
            raise TypeError(f"unknown option {name!r}")
    return request


def tokenize_request(
    prompt: str | None,
    messages: Messages | None,
    model: str | None,
    return_token_strs: bool,
    options: PromptOptions,
) -> inference_pb2.TokenizeRequest:
    """The message for one tokenization.

    Raises:
        InvalidRequestError: not exactly one input, or a value that the message cannot hold.
        TypeError: an option that does not exist.
    """
    _require_one(prompt=prompt, messages=messages)
    request = inference_pb2.TokenizeRequest()
    request.MergeFrom(build(inference_pb2.TokenizeRequest, "model", model))
    request.MergeFrom(build(inference_pb2.TokenizeRequest, "return_token_strs", return_token_strs))
    _set_input(request, prompt, messages, options)
    for name, value in options.items():
        if name in CHAT_OPTIONS:
            continue
        if name not in _OF_PROMPT:
            raise TypeError(f"unknown option {name!r}")
        _set_prompt_option(request.prompt_options, name, value)
    return request


def detokenize_request(
    token_ids: Sequence[int], skip_special_tokens: bool, model: str | None
) -> inference_pb2.DetokenizeRequest:
    """The message for one detokenization. Raises InvalidRequestError."""
    request = inference_pb2.DetokenizeRequest()
    values = {"token_ids": token_ids, "skip_special_tokens": skip_special_tokens, "model": model}
    for name, value in values.items():
        request.MergeFrom(build(inference_pb2.DetokenizeRequest, name, value))
    return request
