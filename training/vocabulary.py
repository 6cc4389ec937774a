"""The draft vocabulary: the tokens that a head can guess."""

from __future__ import annotations

from collections.abc import Iterable

import torch


def choose_vocabulary(
    texts: Iterable[torch.Tensor], vocab_size: int, draft_vocab_size: int, always: frozenset[int]
) -> torch.Tensor:
    """The most frequent tokens of texts.

    Args:
        texts: token ids, each [n].
        vocab_size: of the target.
        draft_vocab_size: how many are chosen, at most `vocab_size`.
        always: chosen in any case, such as those that end an answer.

    Returns:
        [draft_vocab_size] int64, ascending.

    Raises:
        ValueError: more are wanted than there are.
    """
    if not len(always) <= draft_vocab_size <= vocab_size:
        raise ValueError(
            f"a draft vocabulary has {len(always)} to {vocab_size} tokens, not {draft_vocab_size}"
        )
    counts = torch.zeros(vocab_size, dtype=torch.int64)
    for text in texts:
        counts += torch.bincount(text.long(), minlength=vocab_size)
    counts[list(always)] = torch.iinfo(torch.int64).max
    # Stable, so that ties go to lower ids, which tokenizers learned first.
    order = torch.argsort(counts, descending=True, stable=True)
    return order[:draft_vocab_size].sort().values
