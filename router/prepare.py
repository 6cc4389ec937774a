"""From what a client asked to what can be dispatched: defaults, limits, tokens. Once, for both doors."""

from __future__ import annotations

import asyncio
import secrets
import string
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from router.answer_reader import Reading
from router.answer_text import TextRules
from router.errors import InvalidRequestError, ModelNotFoundError
from router.generation import GenerationRequest
from router.model_reading import AskedOfAnswers
from router.prompts import Prompt, PromptReader, ServedModel, check_token_ids
from router.resolve import SamplingResolver, tried_of
from router.sampling_options import SamplingOptions
from router.speculation_options import SpeculationOptions
from router.text.tokenizer import INLINE_CHARACTERS

# Generations that one client request may start: prompts times choices.
MAX_GENERATIONS = 128
MAX_ID_LENGTH = 128
MAX_SALT_LENGTH = 256
MAX_DETOKENIZED = 1 << 20
MIN_PRIORITY, MAX_PRIORITY = -(2**31), 2**31 - 1
_ID_CHARACTERS = frozenset(string.ascii_letters + string.digits + string.punctuation)


@dataclass(frozen=True, slots=True)
class ClientRequest:
    """One client request, of whichever door.

    Attributes:
        model: name that the client used; empty for the one model.
        prompts: at least one; each gets `sampling.n` choices.
        request_id: the client's name for it, or one that the door made.
        deadline: seconds since 1970; None for none.
        arrived_at: `time.monotonic()` when it came in.
        trace: adds spans to the timelines.
        priority: lower runs first; a sint32.
        truncate_prompt_tokens: keep so many tokens of each prompt, the last ones; -1 for as many as fit.
        answers: what is asked of the answers beside how their tokens are chosen.
        speculation: how tokens are guessed ahead; None for the deployment's way.
    """

    model: str
    prompts: tuple[Prompt, ...]
    sampling: SamplingOptions
    request_id: str
    arrived_at: float
    cache_salt: str = ""
    deadline: float | None = None
    trace: bool = False
    priority: int = 0
    truncate_prompt_tokens: int | None = None
    answers: AskedOfAnswers = field(default_factory=AskedOfAnswers)
    speculation: SpeculationOptions | None = None


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """A request that can be dispatched.

    Attributes:
        generations: attempt a at prompt p stands at p * num_tried + a.
        num_choices: n, the answers that are returned for each prompt.
        num_tried: those that are generated for it; more than n with best_of.
        rules: how tokens become text.
        reading: how text is parted.
        echo: each prompt's text, which begins its answers; empty where none is asked for.
        score_only: the prompt's log probabilities are all that is wanted; the generated token is dropped.
        reports_logprobs: the client asked for the answer's log probabilities.
        prompt_tokens: tokens of all prompts, each counted once.
    """

    request_id: str
    generations: tuple[GenerationRequest, ...]
    num_choices: int
    num_tried: int
    rules: TextRules
    reading: Reading
    echo: tuple[str, ...]
    score_only: bool
    reports_logprobs: bool
    prompt_tokens: int
    arrived_at: float
    deadline: float | None

    def prompt_of(self, choice: int) -> tuple[int, ...]:
        """Token ids of the prompt that a choice, numbered as clients see it, answers."""
        return self.generations[choice // self.num_choices * self.num_tried].prompt_token_ids


def is_request_id(text: str) -> bool:
    """Whether a client's request id can be taken over: printable ASCII without spaces, not too long."""
    return 0 < len(text) <= MAX_ID_LENGTH and _ID_CHARACTERS.issuperset(text)


def new_request_id() -> str:
    """A request id that nobody else has: 128 random bits."""
    return secrets.token_hex(16)


class Preparer:
    """Validates and resolves requests for one model. Stateless."""

    def __init__(self, model: ServedModel) -> None:
        self.model = model
        self._reader = PromptReader(model)

    def check_model(self, name: str) -> None:
        """Raises ModelNotFoundError unless `name` is served."""
        if name != self.model.name:
            raise ModelNotFoundError(name, self.model.name)

    async def tokenize(self, prompt: Prompt, truncate: int | None = None) -> tuple[int, ...]:
        """Token ids of one prompt, at least one, of whatever length; the last `truncate` of them.

        Raises InvalidRequestError.
        """
        token_ids = await self._reader.tokenize(prompt)
        return token_ids if truncate is None else self._reader.cut(token_ids, truncate)

    async def detokenize(self, token_ids: Sequence[int], *, skip_special_tokens: bool, param: str) -> str:
        """Text of any token ids. Raises InvalidRequestError, which names `param`."""
        check_token_ids(token_ids, self.model.tokenizer.vocab_size, param)

        def decode() -> str:
            return self.model.tokenizer.decode(token_ids, skip_special_tokens=skip_special_tokens)

        return decode() if len(token_ids) <= INLINE_CHARACTERS else await asyncio.to_thread(decode)

    async def prepare(self, request: ClientRequest) -> PreparedRequest:
        """Raises InvalidRequestError, which names the parameter at fault."""
        asked = request.sampling
        self._check(request)
        num_tried = tried_of(asked)
        resolver = SamplingResolver(self.model, asked, secrets.randbits(64))
        bad_words = await resolver.bad_words()
        prompts = [
            await self._reader.read(prompt, request.truncate_prompt_tokens, asked.max_tokens)
            for prompt in request.prompts
        ]
        reading, grammar = await self.model.reading.of(request.answers, prompts[0])
        # Workers know a generation by its id alone, and clients may repeat theirs.
        unique = f"{request.request_id}:{secrets.token_hex(8)}"
        generations: list[GenerationRequest] = []
        speculation = None if request.speculation is None else request.speculation.resolved()
        for token_ids in prompts:
            sampling = resolver.resolve(len(token_ids), bad_words)
            generations.extend(
                GenerationRequest(
                    request_id=f"{unique}:{len(generations) + choice}",
                    prompt_token_ids=token_ids,
                    sampling=replace(sampling, choice=choice, grammar=grammar),
                    cache_salt=request.cache_salt,
                    deadline=request.deadline,
                    trace=request.trace,
                    priority=request.priority,
                    speculation=speculation,
                )
                for choice in range(num_tried)
            )
        rules = TextRules(
            stops=tuple(asked.stop or ()),
            include_stop=bool(asked.include_stop_str_in_output),
            skip_special_tokens=asked.skip_special_tokens is not False,
            markers=self.model.reading.markers if request.answers.chat else frozenset(),
        )
        return PreparedRequest(
            request_id=request.request_id,
            generations=tuple(generations),
            num_choices=asked.n or 1,
            num_tried=num_tried,
            rules=rules,
            reading=reading,
            echo=self._echo(request, prompts, rules) if asked.echo else (),
            score_only=resolver.score_only,
            reports_logprobs=asked.logprobs is not None,
            prompt_tokens=sum(map(len, prompts)),
            arrived_at=request.arrived_at,
            deadline=request.deadline,
        )

    def _echo(
        self, request: ClientRequest, prompts: list[tuple[int, ...]], rules: TextRules
    ) -> tuple[str, ...]:
        cut = request.truncate_prompt_tokens is not None
        skip = rules.skip_special_tokens
        return tuple(
            self._reader.text_of(prompt, token_ids, cut=cut, skip_special_tokens=skip)
            for prompt, token_ids in zip(request.prompts, prompts, strict=True)
        )

    def _check(self, request: ClientRequest) -> None:
        """What concerns the request as a whole."""
        if request.model:
            self.check_model(request.model)
        if not is_request_id(request.request_id):
            raise InvalidRequestError(
                f"A request id is 1 to {MAX_ID_LENGTH} printable ASCII characters without spaces.",
                "request_id",
                "invalid_value",
            )
        if len(request.cache_salt) > MAX_SALT_LENGTH:
            raise InvalidRequestError(
                f"cache_salt has {len(request.cache_salt)} characters; {MAX_SALT_LENGTH} are allowed.",
                "cache_salt",
                "invalid_value",
            )
        num_tried = tried_of(request.sampling)
        if len(request.prompts) * num_tried > MAX_GENERATIONS:
            name = "n" if request.sampling.best_of is None else "best_of"
            raise InvalidRequestError(
                f"{len(request.prompts)} prompts with {num_tried} choices each are more than the "
                f"{MAX_GENERATIONS} answers that one request may ask for.",
                name if len(request.prompts) == 1 else "prompt",
                "invalid_value",
            )
