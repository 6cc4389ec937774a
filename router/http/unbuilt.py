"""OpenAI's (and vLLM's) parameters that this server does not have yet.

Clients send many of them at the value that changes nothing; that value is accepted and dropped. Any other is
refused by name: nothing that was asked for is ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from router.errors import InvalidRequestError

Neutral = Callable[[object], bool]


def _only(*values: object) -> Neutral:
    """Null or one of `values`, of the same type (1 is not true), but 0 and 0.0 are one number."""

    def check(value: object) -> bool:
        return value is None or any(
            value == neutral and isinstance(value, bool) == isinstance(neutral, bool) for neutral in values
        )

    return check


_COMMON: dict[str, Neutral] = {
    "length_penalty": _only(1),
    "use_beam_search": _only(False),
    "early_stopping": _only(False),
    "store": _only(False),
    "service_tier": _only("auto", "default"),
    "prompt_cache_retention": _only(),
    "logits_processors": _only([]),
    "guided_decoding_backend": _only(),
    "guided_whitespace_pattern": _only(),
    "kv_transfer_params": _only(),
    "mm_processor_kwargs": _only({}),
    "vllm_xargs": _only({}),
}

CHAT: Mapping[str, Neutral] = {
    **_COMMON,
    "best_of": _only(1),
    "echo": _only(False),
    "functions": _only([]),
    "function_call": _only("none", "auto"),
    "modalities": _only(["text"]),
    "audio": _only(),
    "prediction": _only(),
    "reasoning_effort": _only(),
    "verbosity": _only("medium"),
    "web_search_options": _only(),
    "chat_template": _only(),
    "documents": _only([]),
}

COMPLETION: Mapping[str, Neutral] = {
    **_COMMON,
    "suffix": _only(""),
}

TOKENIZE: Mapping[str, Neutral] = {"chat_template": _only()}

# What clients send back of an assistant's earlier message.
MESSAGE: Mapping[str, Neutral] = {
    "function_call": _only(),
    "refusal": _only(),
    "audio": _only(),
    "annotations": _only([]),
}


def drop_neutral(
    values: Mapping[str, object], table: Mapping[str, Neutral], where: str = ""
) -> dict[str, object]:
    """`values` without the parameters of `table`.

    Args:
        where: prefix of the parameter's name in messages, for example `messages[0].`.

    Raises InvalidRequestError for one that is not at a neutral value.
    """
    kept: dict[str, object] = {}
    for name, value in values.items():
        neutral = table.get(name)
        if neutral is None:
            kept[name] = value
        elif not neutral(value):
            raise InvalidRequestError(
                f"{where + name!r} is not supported by this server at the given value; leave it out.",
                where + name,
                "unsupported_parameter",
            )
    return kept


def drop_unset_options(options: Mapping[str, object], known: frozenset[str], where: str) -> dict[str, object]:
    """`options` without unknown keys that are null or false. Raises InvalidRequestError for the others."""
    kept: dict[str, object] = {}
    for name, value in options.items():
        if name in known:
            kept[name] = value
        elif value is not None and value is not False:
            raise InvalidRequestError(
                f"{where + name!r} is not supported by this server at the given value; leave it out.",
                where + name,
                "unsupported_parameter",
            )
    return kept
