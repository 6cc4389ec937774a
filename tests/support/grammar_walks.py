"""Random answers under a grammar: what a model without any sense could say."""

from __future__ import annotations

import random
from functools import cache

from llguidance import LLMatcher, LLTokenizer

from router.generation import GrammarSpec
from tests.support.tiny_tokenizer import IM_END, byte_tokenizer

# Bytes that bring an answer nearer to its end, and how much likelier they are drawn.
_CLOSERS = b'"}]</'
_CLOSER_WEIGHT = 12.0
_PLAIN = b"abcdefghijklmnopqrstuvwxyzABC0123456789 {}[],:-.\\\n"
_PLAIN_WEIGHT = 3.0
_END_WEIGHT = 400.0


@cache
def tiny_matcher_tokenizer() -> LLTokenizer:
    """The tiny tokenizer as llguidance reads it: one token for each byte."""
    return LLTokenizer(byte_tokenizer().to_str(), eos_token=IM_END)


def compiled(grammar: GrammarSpec) -> str:
    """The grammar in llguidance's own form."""
    match grammar.kind:
        case "json_schema":
            return LLMatcher.grammar_from_json_schema(grammar.source)
        case "regex":
            return LLMatcher.grammar_from_regex(grammar.source)
        case "lark":
            return LLMatcher.grammar_from_lark(grammar.source)


def error_of(grammar: GrammarSpec) -> str:
    """What the library says against a grammar; empty where it takes it and some answer can begin."""
    matcher = LLMatcher(tiny_matcher_tokenizer(), compiled(grammar), log_level=0)
    if not matcher.is_error() and not any(matcher.compute_bitmask()):
        return "no answer"
    return matcher.get_error()


def walk(grammar: GrammarSpec, rng: random.Random, max_tokens: int = 400, *, prefix: str = "") -> str | None:
    """A random answer that begins with `prefix`; None where it is not complete after `max_tokens`."""
    matcher = LLMatcher(tiny_matcher_tokenizer(), compiled(grammar), log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    tokens = list(prefix.encode())
    assert matcher.consume_tokens(tokens), matcher.get_error()
    for _ in range(max_tokens):
        bias = matcher.compute_logit_bias()
        assert not matcher.is_error(), matcher.get_error()
        allowed = [token for token, value in enumerate(bias) if value]
        assert allowed, f"nothing may follow {bytes(tokens)!r}"
        weights = [_weight(token) for token in allowed]
        token = rng.choices(allowed, weights)[0]
        if token == IM_END:
            return bytes(tokens).decode()
        assert matcher.consume_token(token), matcher.get_error()
        tokens.append(token)
        if matcher.is_stopped():
            return bytes(tokens).decode()
    return None


def accepts(grammar: GrammarSpec, text: str) -> bool:
    """Whether the grammar takes `text` as a complete answer."""
    matcher = LLMatcher(tiny_matcher_tokenizer(), compiled(grammar), log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    tokens = list(text.encode())
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


def _weight(token: int) -> float:
    if token == IM_END:
        return _END_WEIGHT
    if token in _CLOSERS:
        return _CLOSER_WEIGHT
    return _PLAIN_WEIGHT if token in _PLAIN else 0.2
