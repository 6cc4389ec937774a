"""From what a client asked to what can be dispatched: defaults, limits, tokens. Once, for both doors."""

from __future__ import annotations

import secrets
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from router.errors import InvalidRequestError, ModelNotFoundError
from router.generation import GenerationRequest, ResolvedSampling
from router.sampling_options import DEFAULT_TEMPERATURE, DEFAULT_TOP_P, SamplingOptions
from router.text.chat_template import ChatTemplate
from router.text.errors import ChatTemplateError
from router.text.tokenizer import Tokenizer

# Generations that one client request may start: prompts times choices.
MAX_GENERATIONS = 128
MAX_ID_LENGTH = 128
MAX_SALT_LENGTH = 256
_ID_CHARACTERS = frozenset(string.ascii_letters + string.digits + string.punctuation)


@dataclass(frozen=True, slots=True)
class ServedModel:
    """The one model of this router.

    Attributes:
        name: what clients call it.
        max_model_len: tokens of prompt and answer together.
        created: seconds since 1970, when the router began to serve it.
    """

    name: str
    tokenizer: Tokenizer
    chat_template: ChatTemplate
    max_model_len: int
    created: int


@dataclass(frozen=True, slots=True)
class TextPrompt:
    """A plain prompt. `param` names it in error messages."""

    text: str
    param: str = "prompt"


@dataclass(frozen=True, slots=True)
class TokenPrompt:
    """A prompt as token ids. `param` names it in error messages."""

    token_ids: tuple[int, ...]
    param: str = "prompt"


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A chat: messages with `role`, `content` and what else the model's template reads."""

    messages: tuple[Mapping[str, str], ...]
    param: str = "messages"


Prompt = TextPrompt | TokenPrompt | ChatPrompt


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
    """

    model: str
    prompts: tuple[Prompt, ...]
    sampling: SamplingOptions
    request_id: str
    arrived_at: float
    cache_salt: str = ""
    deadline: float | None = None
    trace: bool = False


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """A request that can be dispatched.

    Attributes:
        generations: choice c of prompt p stands at p * n + c.
        num_choices: n.
        stops: stop strings, watched by the router.
        prompt_tokens: tokens of all prompts, each counted once.
    """

    request_id: str
    generations: tuple[GenerationRequest, ...]
    num_choices: int
    stops: tuple[str, ...]
    prompt_tokens: int
    arrived_at: float
    deadline: float | None


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

    def check_model(self, name: str) -> None:
        """Raises ModelNotFoundError unless `name` is served."""
        if name != self.model.name:
            raise ModelNotFoundError(name, self.model.name)

    async def prepare(self, request: ClientRequest) -> PreparedRequest:
        """Raises InvalidRequestError, which names the parameter at fault."""
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
        num_choices = request.sampling.n or 1
        if len(request.prompts) * num_choices > MAX_GENERATIONS:
            raise InvalidRequestError(
                f"{len(request.prompts)} prompts with {num_choices} choices each are more than the "
                f"{MAX_GENERATIONS} answers that one request may ask for.",
                "n" if len(request.prompts) == 1 else "prompt",
                "invalid_value",
            )
        prompts = [await self._fitting_tokens(prompt) for prompt in request.prompts]
        # Workers know a generation by its id alone, and clients may repeat theirs.
        unique = f"{request.request_id}:{secrets.token_hex(8)}"
        generations: list[GenerationRequest] = []
        seed = secrets.randbits(64) if request.sampling.seed is None else request.sampling.seed % 2**64
        for token_ids in prompts:
            sampling = self._resolve(request.sampling, len(token_ids), seed)
            generations.extend(
                GenerationRequest(
                    request_id=f"{unique}:{len(generations) + choice}",
                    prompt_token_ids=token_ids,
                    sampling=replace(sampling, choice=choice),
                    cache_salt=request.cache_salt,
                    deadline=request.deadline,
                    trace=request.trace,
                )
                for choice in range(num_choices)
            )
        return PreparedRequest(
            request_id=request.request_id,
            generations=tuple(generations),
            num_choices=num_choices,
            stops=tuple(request.sampling.stop or ()),
            prompt_tokens=sum(map(len, prompts)),
            arrived_at=request.arrived_at,
            deadline=request.deadline,
        )

    async def tokenize(self, prompt: Prompt) -> tuple[int, ...]:
        """Token ids of one prompt, at least one, of whatever length. Raises InvalidRequestError."""
        match prompt:
            case TextPrompt():
                token_ids = tuple(await self.model.tokenizer.encode(prompt.text, add_special_tokens=True))
                # Tokens that the tokenizer adds by itself make no prompt.
                token_ids = token_ids if prompt.text else ()
            case TokenPrompt():
                token_ids = prompt.token_ids
                self._check_ids(token_ids, prompt.param)
            case ChatPrompt():
                try:
                    text = self.model.chat_template.render(prompt.messages)
                except ChatTemplateError as error:
                    raise InvalidRequestError(str(error), prompt.param, "chat_template") from error
                token_ids = tuple(await self.model.tokenizer.encode(text, add_special_tokens=False))
        if not token_ids:
            raise InvalidRequestError("The prompt is empty.", prompt.param, "empty_prompt")
        return token_ids

    async def _fitting_tokens(self, prompt: Prompt) -> tuple[int, ...]:
        token_ids = await self.tokenize(prompt)
        if len(token_ids) >= self.model.max_model_len:
            raise InvalidRequestError(
                f"The prompt has {len(token_ids)} tokens; this model's context length is "
                f"{self.model.max_model_len} tokens, prompt and answer together.",
                prompt.param,
                "context_length_exceeded",
            )
        return token_ids

    def _check_ids(self, token_ids: Sequence[int], param: str) -> None:
        vocab_size = self.model.tokenizer.vocab_size
        # A prompt may be a million ids long: the loop over them must not be Python's.
        for token_id in (min(token_ids, default=0), max(token_ids, default=0)):
            if not 0 <= token_id < vocab_size:
                raise InvalidRequestError(
                    f"Token id {token_id} is out of range; this model has the ids 0 to {vocab_size - 1}.",
                    param,
                    "invalid_token_id",
                )

    def _resolve(self, asked: SamplingOptions, num_prompt_tokens: int, seed: int) -> ResolvedSampling:
        room = self.model.max_model_len - num_prompt_tokens
        max_tokens = room if asked.max_tokens is None else asked.max_tokens
        min_tokens = asked.min_tokens or 0
        stop_token_ids = tuple(asked.stop_token_ids or ())
        self._check_ids(stop_token_ids, "stop_token_ids")
        if max_tokens > room:
            raise InvalidRequestError(
                f"max_tokens is {max_tokens}, but the prompt's {num_prompt_tokens} tokens leave {room} of "
                f"this model's context length of {self.model.max_model_len} tokens.",
                "max_tokens",
                "context_length_exceeded",
            )
        if min_tokens > max_tokens:
            raise InvalidRequestError(
                f"min_tokens is {min_tokens}, more than the {max_tokens} tokens that may be generated.",
                "min_tokens",
                "invalid_value",
            )
        return ResolvedSampling(
            temperature=DEFAULT_TEMPERATURE if asked.temperature is None else asked.temperature,
            top_p=DEFAULT_TOP_P if asked.top_p is None else asked.top_p,
            top_k=max(asked.top_k or 0, 0),
            seed=seed,
            choice=0,
            max_tokens=max_tokens,
            min_tokens=min_tokens,
            stop_token_ids=stop_token_ids,
            ignore_eos=bool(asked.ignore_eos),
        )
