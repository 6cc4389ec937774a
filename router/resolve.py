"""Sampling options of a client to what workers are told: every default applied, every bound checked."""

from __future__ import annotations

from collections.abc import Container

from router.errors import InvalidRequestError
from router.generation import ResolvedSampling
from router.prompts import ServedModel, check_token_ids
from router.sampling_options import SamplingOptions


def tried_of(asked: SamplingOptions) -> int:
    """Answers that are generated to each prompt. Raises InvalidRequestError."""
    n = asked.n or 1
    if asked.best_of is None:
        return n
    if asked.best_of < n:
        raise InvalidRequestError(
            f"best_of is {asked.best_of}, fewer than the {n} answers that n asks for.",
            "best_of",
            "invalid_value",
        )
    return asked.best_of


def prompt_logprobs_of(asked: SamplingOptions) -> int | None:
    """What workers report of the prompt: what is asked for, and what an echo with log probabilities needs."""
    if asked.echo and asked.logprobs is not None:
        return max(asked.logprobs, asked.prompt_logprobs or 0)
    return asked.prompt_logprobs


class SamplingResolver:
    """Resolves the options of one client request, for one model. The tokenizer works once for all prompts.

    Args:
        model: whose limits hold.
        asked: valid each for itself.
        seed: where the client gave none.

    Raises InvalidRequestError, which names the parameter at fault.
    """

    def __init__(self, model: ServedModel, asked: SamplingOptions, seed: int) -> None:
        self._model = model
        self._asked = asked
        self._seed = seed if asked.seed is None else asked.seed % 2**64
        self._vocab_size = model.tokenizer.vocab_size
        self._tried = tried_of(asked)
        for name in ("stop_token_ids", "allowed_token_ids"):
            check_token_ids(getattr(asked, name) or (), self._vocab_size, name)
        self._logit_bias = self._biases()
        self.score_only = asked.max_tokens == 0
        if self.score_only and prompt_logprobs_of(asked) is None:
            raise InvalidRequestError(
                "max_tokens should be greater than or equal to 1. 0 only scores a prompt: it needs echo with "
                "logprobs, or prompt_logprobs.",
                "max_tokens",
                "invalid_value",
            )

    async def bad_words(self) -> tuple[tuple[int, ...], ...]:
        """Token sequences of the bad words, without and with a space before them."""
        texts: list[str] = []
        for position, word in enumerate(self._asked.bad_words or ()):
            bare = word.lstrip(" ")
            if not bare:
                param = f"bad_words[{position}]"
                raise InvalidRequestError(f"{param} has only spaces.", param, "invalid_value")
            texts += (bare, f" {bare}")
        found = await self._model.tokenizer.encode_all(texts, add_special_tokens=False)
        sequences = {tuple(token_ids): None for token_ids in found if token_ids}
        lengths = {len(sequence) for sequence in sequences}
        return tuple(
            sequence for sequence in sequences if not _ends_with_another(sequence, sequences, lengths)
        )

    def resolve(self, num_prompt_tokens: int, bad_words: tuple[tuple[int, ...], ...]) -> ResolvedSampling:
        """The parameters of the first choice to a prompt of so many tokens."""
        asked = self._asked
        room = self._model.max_model_len - num_prompt_tokens
        max_tokens = room if asked.max_tokens is None else max(asked.max_tokens, 1)
        min_tokens = asked.min_tokens or 0
        if max_tokens > room:
            raise InvalidRequestError(
                f"max_tokens is {_number(max_tokens)}, but the prompt's {num_prompt_tokens} tokens leave "
                f"{room} "
                f"of this model's context length of {self._model.max_model_len} tokens.",
                "max_tokens",
                "context_length_exceeded",
            )
        if min_tokens > max_tokens:
            raise InvalidRequestError(
                f"min_tokens is {_number(min_tokens)}, more than the {max_tokens} tokens that may be "
                "generated.",
                "min_tokens",
                "invalid_value",
            )
        return ResolvedSampling(
            temperature=_or(asked.temperature, 1.0),
            top_p=_or(asked.top_p, 1.0),
            top_k=max(asked.top_k or 0, 0),
            seed=self._seed,
            choice=0,
            max_tokens=max_tokens,
            min_tokens=min_tokens,
            stop_token_ids=tuple(asked.stop_token_ids or ()),
            ignore_eos=bool(asked.ignore_eos),
            min_p=_or(asked.min_p, 0.0),
            typical_p=_or(asked.typical_p, 1.0),
            presence_penalty=_or(asked.presence_penalty, 0.0),
            frequency_penalty=_or(asked.frequency_penalty, 0.0),
            repetition_penalty=_or(asked.repetition_penalty, 1.0),
            logit_bias=self._logit_bias,
            bad_words=bad_words,
            allowed_token_ids=tuple(asked.allowed_token_ids or ()),
            logprobs=self._logprobs(),
            prompt_logprobs=prompt_logprobs_of(asked),
            own_seed=asked.seed is not None,
        )

    def _logprobs(self) -> int | None:
        """Choosing the best of several needs the drawn tokens' own, whether they are reported or not."""
        asked = self._asked
        if asked.logprobs is None and self._tried > (asked.n or 1):
            return 0
        return asked.logprobs

    def _biases(self) -> tuple[tuple[int, float], ...]:
        biases: dict[int, float] = {}
        for key, bias in (self._asked.logit_bias or {}).items():
            if not (key.isascii() and key.isdecimal() and len(key) <= 20):
                raise InvalidRequestError(
                    f"logit_bias has the key {key[:40]!r}, which is no token id.",
                    "logit_bias",
                    "invalid_value",
                )
            check_token_ids((int(key),), self._vocab_size, "logit_bias")
            biases[int(key)] = bias
        return tuple(sorted(biases.items()))


def _or(value: float | None, default: float) -> float:
    return default if value is None else value


def _number(value: int) -> str:
    """A number of any length may have been sent."""
    return str(value) if value < 2**64 else "too large a number"


def _ends_with_another(
    sequence: tuple[int, ...], others: Container[tuple[int, ...]], lengths: set[int]
) -> bool:
    """Whether a shorter sequence, of one of these lengths, already forbids this one."""
    return any(sequence[-length:] in others for length in lengths if length < len(sequence))
