"""Text to token ids, as the model's Hugging Face folder says.

Reads `tokenizer.json` (the `tokenizers` library), `config.json` (vocabulary size, EOS ids) and
`generation_config.json` (EOS ids, which take precedence, as in Hugging Face transformers).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import tokenizers

from router.text.detokenizer import Detokenizer
from router.text.errors import ModelFilesError
from router.text.token_bytes import TokenBytes
from router.text.token_lengths import longest_token

# Longer texts are tokenized in a thread (the library releases the GIL): about 1 ms of the event loop.
INLINE_CHARACTERS = 4096


def read_json_object(path: Path) -> dict[str, object]:
    """Reads one of the model folder's JSON files. Raises ModelFilesError."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelFilesError(f"{path} is missing") from None
    except (OSError, ValueError) as error:
        raise ModelFilesError(f"{path} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise ModelFilesError(f"{path} must hold a JSON object")
    return content


def _token_ids(value: object) -> frozenset[int]:
    if isinstance(value, int):
        return frozenset((value,))
    if isinstance(value, list):
        return frozenset(item for item in value if isinstance(item, int))
    return frozenset()


class Tokenizer:
    """The tokenizer of one model. Immutable and shared by all requests.

    Attributes:
        vocab_size: rows of the model's embedding; every token id is below it.
        eos_token_ids: ids at which the model ends an answer.
        token_bytes: what each token id stands for, special tokens for nothing.
        all_token_bytes: the same, special tokens for their own text.
        longest_token: most characters of a text that one token can stand for; None where that has no bound.
    """

    def __init__(
        self, library: tokenizers.Tokenizer, vocab_size: int, eos_token_ids: frozenset[int], source: str
    ) -> None:
        library.no_truncation()
        library.no_padding()
        self._library = library
        self._source = source
        self._showing: dict[frozenset[str], TokenBytes] = {}
        self.vocab_size = vocab_size
        self.eos_token_ids = eos_token_ids
        self.token_bytes = TokenBytes(library, source)
        self.all_token_bytes = TokenBytes(library, source, keep_special=True)
        self.longest_token = longest_token(library)

    @classmethod
    def load(cls, folder: Path) -> Tokenizer:
        """Reads a model folder. Raises ModelFilesError for a missing, corrupt or unsupported file."""
        if not folder.is_dir():
            raise ModelFilesError(f"the model folder {folder} does not exist")
        path = folder / "tokenizer.json"
        try:
            library = tokenizers.Tokenizer.from_str(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise ModelFilesError(f"{path} is missing") from None
        # The library raises bare Exception for whatever it cannot parse.
        except Exception as error:
            raise ModelFilesError(f"{path} cannot be read: {error}") from error
        config = read_json_object(folder / "config.json")
        vocab_size = config.get("vocab_size")
        if not isinstance(vocab_size, int) or vocab_size < 1:
            raise ModelFilesError(f"{folder / 'config.json'}: vocab_size must be a positive integer")
        generation_path = folder / "generation_config.json"
        generation = read_json_object(generation_path) if generation_path.exists() else {}
        eos = _token_ids(generation.get("eos_token_id")) or _token_ids(config.get("eos_token_id"))
        return cls(library, vocab_size, eos, str(path))

    async def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        """Token ids of `text`; special tokens written out in it become themselves.

        Args:
            text: any string.
            add_special_tokens: add what the tokenizer's post-processor adds (often BOS). False for a
                rendered chat, whose template writes them itself.
        """
        return (await self.encode_all([text], add_special_tokens))[0]

    async def encode_all(self, texts: Sequence[str], add_special_tokens: bool) -> list[list[int]]:
        """The same of several texts, in their order."""
        if sum(map(len, texts)) <= INLINE_CHARACTERS:
            return [self._library.encode(text, add_special_tokens=add_special_tokens).ids for text in texts]
        encodings = await asyncio.to_thread(
            self._library.encode_batch, list(texts), add_special_tokens=add_special_tokens
        )
        return [encoding.ids for encoding in encodings]

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of a whole sequence, as `Detokenizer` makes it token by token."""
        detokenizer = Detokenizer(self.token_bytes if skip_special_tokens else self.all_token_bytes)
        return "".join(map(detokenizer.add, token_ids)) + detokenizer.finish()

    def serialized(self) -> str:
        """The tokenizer as its library writes it: the text of a tokenizer.json."""
        return self._library.to_str()

    @property
    def num_ids(self) -> int:
        """Ids of the embedding and of the tokenizer, whichever are more."""
        return max(self.vocab_size, self._library.get_vocab_size(with_added_tokens=True))

    def special_among(self, texts: Iterable[str]) -> frozenset[str]:
        """Those that are special tokens."""
        added = self._library.get_added_tokens_decoder().values()
        return frozenset(texts) & {token.content for token in added if token.special}

    def bytes_showing(self, shown: frozenset[str]) -> TokenBytes:
        """What each token stands for, where some special tokens keep their text."""
        if not shown:
            return self.token_bytes
        if shown not in self._showing:
            self._showing[shown] = TokenBytes(self._library, self._source, shown=shown)
        return self._showing[shown]

    def token(self, token_id: int) -> str:
        """The token as the vocabulary spells it; empty for an id without one."""
        return self._library.id_to_token(token_id) or ""
