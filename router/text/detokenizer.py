"""Token ids to text, one token at a time."""

from __future__ import annotations

import codecs

from router.text.token_bytes import TokenBytes

_utf8_decoder = codecs.getincrementaldecoder("utf-8")


class Detokenizer:
    """Turns one answer's tokens into text as they come, in constant time for each byte.

    What has been returned never ends inside a character. All pieces and `finish` together equal what the
    answer adds to its decoded prompt, so a space at its start stays. Bytes that are no UTF-8 become U+FFFD,
    one for each maximal part of a character (Unicode 16, section 3.9). One difference from the `tokenizers`
    library is meant: its byte fallback turns a whole run of byte tokens into U+FFFD where one of them is
    bad, here the good characters stay, for they may have been sent already.
    """

    def __init__(self, token_bytes: TokenBytes) -> None:
        self._token_bytes = token_bytes
        self._decoder = _utf8_decoder(errors="replace")

    def add(self, token_id: int) -> str:
        """Text that this token completes; often empty inside a character or for special tokens."""
        return self._decoder.decode(self._token_bytes[token_id])

    def finish(self) -> str:
        """What was held back: U+FFFD for an unfinished character, else nothing. Call once, last."""
        return self._decoder.decode(b"", final=True)
