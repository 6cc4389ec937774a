"""Log probabilities in OpenAI's two forms and vLLM's."""

from __future__ import annotations

from collections.abc import Sequence

from router.answer_text import ShownToken
from router.generation import TokenLogprobs
from router.http.responses import (
    ChatLogprob,
    ChatLogprobs,
    CompletionLogprobs,
    PromptLogprob,
    PromptLogprobs,
    TopLogprob,
)
from router.text.detokenizer import Detokenizer
from router.text.tokenizer import Tokenizer

# JSON has no infinity; OpenAI's own stand-in for what can never be drawn.
_LOWEST = -9999.0


def _finite(logprob: float) -> float:
    return max(logprob, _LOWEST)


class LogprobsWriter:
    """Writes log probabilities of one request.

    Args:
        tokenizer: names the tokens.
        as_ids: name them by their ids.
        num_top: likeliest tokens that were asked for beside each of the answer's.
    """

    def __init__(self, tokenizer: Tokenizer, *, as_ids: bool, num_top: int) -> None:
        self._tokenizer = tokenizer
        self._as_ids = as_ids
        self._num_top = num_top

    def chat(self, shown: Sequence[ShownToken]) -> ChatLogprobs:
        """For a chat's choice."""
        content: list[ChatLogprob] = []
        for token in shown:
            top = token.logprobs.top[: self._num_top]
            content.append(
                {
                    **self._entry(token.token_id, token.logprobs.logprob),
                    "top_logprobs": [self._entry(token_id, logprob) for token_id, logprob in top],
                }
            )
        return {"content": content, "refusal": None}

    def completion(self, shown: Sequence[ShownToken], text_begin: int) -> CompletionLogprobs:
        """For a completion's choice, whose answer begins so many characters into its text."""
        return {
            "tokens": [self._name(token.token_id) for token in shown],
            "token_logprobs": [_finite(token.logprobs.logprob) for token in shown],
            "top_logprobs": [self._by_name(token.token_id, token.logprobs) for token in shown],
            "text_offset": [text_begin + token.offset for token in shown],
        }

    def echo(
        self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs], text: str
    ) -> CompletionLogprobs:
        """For a prompt that is repeated as `text`. The first token has none: nothing stands before it."""
        return {
            "tokens": [self._name(token_id) for token_id in token_ids],
            "token_logprobs": [None, *(_finite(position.logprob) for position in logprobs)],
            "top_logprobs": [
                None,
                *(
                    self._by_name(token_id, position)
                    for token_id, position in zip(token_ids[1:], logprobs, strict=True)
                ),
            ],
            "text_offset": self._offsets(token_ids, text),
        }

    def prompt(
        self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs], num_top: int
    ) -> PromptLogprobs:
        """In vLLM's form."""
        written: PromptLogprobs = [None]
        for token_id, position in zip(token_ids[1:], logprobs, strict=True):
            entries = {token_id: self._ranked(token_id, position.logprob, position.rank)}
            for rank, (other, logprob) in enumerate(position.top[:num_top], start=1):
                entries.setdefault(other, self._ranked(other, logprob, rank))
            written.append({str(key): entry for key, entry in entries.items()})
        return written

    def _ranked(self, token_id: int, logprob: float, rank: int) -> PromptLogprob:
        return {"logprob": _finite(logprob), "rank": rank, "decoded_token": self._text(token_id, "")}

    def _entry(self, token_id: int, logprob: float) -> TopLogprob:
        name = f"token_id:{token_id}" if self._as_ids else self._text(token_id, "")
        return {
            "token": name,
            "logprob": _finite(logprob),
            "bytes": list(self._tokenizer.all_token_bytes[token_id]),
        }

    def _by_name(self, token_id: int, position: TokenLogprobs) -> dict[str, float]:
        """The likeliest, and the token itself where it is none of them, as OpenAI has it."""
        named = {self._name(other): _finite(logprob) for other, logprob in position.top[: self._num_top]}
        named.setdefault(self._name(token_id), _finite(position.logprob))
        return named

    def _name(self, token_id: int) -> str:
        return f"token_id:{token_id}" if self._as_ids else self._text(token_id, "bytes:")

    def _text(self, token_id: int, prefix: str) -> str:
        """A token of a part of a character must not be taken for another such: its bytes are spelt out."""
        raw = self._tokenizer.all_token_bytes[token_id]
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return prefix + "".join(f"\\x{byte:02x}" for byte in raw)

    def _offsets(self, token_ids: Sequence[int], text: str) -> list[int]:
        """Where each token's text begins: special tokens may have none, and a first space be no part."""
        for token_bytes in (self._tokenizer.all_token_bytes, self._tokenizer.token_bytes):
            detokenizer = Detokenizer(token_bytes)
            offsets: list[int] = []
            read = ""
            for token_id in token_ids:
                offsets.append(len(read))
                read += detokenizer.add(token_id)
            read += detokenizer.finish()
            if read.endswith(text):
                break
        before = max(0, len(read) - len(text))
        return [min(max(0, offset - before), len(text)) for offset in offsets]
