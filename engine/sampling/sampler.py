"""From logits to tokens: the one path for plain, speculative, local and disaggregated decoding.

Order of processing, vLLM's wherever it can be told from the outside:

1. log probabilities are taken from the raw logits;
2. grammar mask and allowed ids, logit_bias, min_tokens mask, bad_words;
3. repetition penalty (prompt and answer), frequency and presence penalty (answer alone);
4. greedy rows take the best logit, the lowest id among equals;
5. temperature, min_p, top_k, top_p, and typical_p, which vLLM does not have, last as in transformers;
6. the draw.

All is fp32. Rows that use none of it cost one argmax; the others are worked on together, in parts that fit
the cache, and none of them depends on another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

from engine.api import TokenLogprobs
from engine.grammar.base import GrammarCompiler
from engine.sampling.choice import Drawer
from engine.sampling.logprobs import token_logprobs
from engine.sampling.processors import edit
from engine.sampling.rules import TokenRules

# Logits that are copied and edited at a time.
_EDITED_ELEMENTS = 1 << 21


@dataclass(slots=True)
class Sampled:
    """Outcome of R rows.

    Attributes:
        token_ids: [R]; without meaning in rows that have none.
        not_numbers: rows whose logits were not numbers.
        stuck: rows whose parameters leave no token.
        logprobs: by row, where asked for.
    """

    token_ids: list[int]
    not_numbers: list[int] = field(default_factory=list)
    stuck: list[int] = field(default_factory=list)
    logprobs: dict[int, TokenLogprobs] = field(default_factory=dict)


class Sampler:
    """Chooses tokens.

    Args:
        grammars: made the matchers of all rules; None where there are none.
    """

    def __init__(self, grammars: GrammarCompiler | None = None) -> None:
        self._grammars = grammars
        self._drawer = Drawer()
        self._edited = torch.empty(0, 0)

    def sample(self, logits: torch.Tensor, rules: Sequence[TokenRules]) -> Sampled:
        """Chooses one token for each row.

        Args:
            logits: [R, vocab] fp32, of the model; left as they are.
            rules: one for each row.
        """
        if len(rules) != logits.shape[0]:
            raise ValueError(f"{logits.shape[0]} rows, {len(rules)} rules")
        self._drawer.begin()
        best, token_ids = _best(logits)
        sampled = Sampled(token_ids.tolist())
        # NaN and infinity show in the best; a few entries of -inf are as good as any others.
        if not np.isfinite(best).all():
            sampled.not_numbers = np.flatnonzero(~np.isfinite(best)).tolist()
        bad = set(sampled.not_numbers)
        edited: list[int] = []
        drawn: list[int] = []
        reported: list[int] = []
        for row, rule in enumerate(rules):
            if rule.plain or row in bad:
                continue
            if rule.edits:
                edited.append(row)
            elif not rule.greedy:
                drawn.append(row)
            if rule.params.logprobs is not None:
                reported.append(row)
        if edited:
            size = max(1, _EDITED_ELEMENTS // logits.shape[1])
            for start in range(0, len(edited), size):
                self._choose_edited(logits, rules, edited[start : start + size], sampled)
        if drawn:
            chosen = self._drawer.draw(logits, drawn, [rules[row] for row in drawn])
            for row, token_id in zip(drawn, chosen, strict=True):
                sampled.token_ids[row] = token_id
        reported = [row for row in reported if row not in sampled.stuck]
        if reported:
            _report(logits, rules, reported, sampled)
        return sampled

    def _choose_edited(
        self, logits: torch.Tensor, rules: Sequence[TokenRules], rows: list[int], sampled: Sampled
    ) -> None:
        # Fresh memory costs more than the copy.
        if self._edited.shape[1] != logits.shape[1] or len(self._edited) < len(rows):
            self._edited = torch.empty(len(rows), logits.shape[1], device=logits.device)
        own = self._edited[: len(rows)]
        torch.index_select(logits, 0, torch.tensor(rows, device=logits.device), out=own)
        edit(own, [rules[row] for row in rows], self._grammars)
        best, token_ids = _best(own)
        drawn: list[int] = []
        for index, row in enumerate(rows):
            if best[index] == -np.inf:
                sampled.stuck.append(row)
            elif rules[row].greedy:
                sampled.token_ids[row] = int(token_ids[index])
            else:
                drawn.append(index)
        if drawn:
            chosen = self._drawer.draw(own, drawn, [rules[rows[index]] for index in drawn])
            for index, token_id in zip(drawn, chosen, strict=True):
                sampled.token_ids[rows[index]] = token_id


def _report(logits: torch.Tensor, rules: Sequence[TokenRules], rows: list[int], sampled: Sampled) -> None:
    reports = token_logprobs(
        _rows(logits, rows),
        [sampled.token_ids[row] for row in rows],
        [rules[row].params.logprobs or 0 for row in rows],
    )
    sampled.logprobs = dict(zip(rows, reports, strict=True))


def _rows(logits: torch.Tensor, rows: list[int]) -> torch.Tensor:
    """Some rows; no copy where it is all of them."""
    if len(rows) == logits.shape[0]:
        return logits
    return logits.index_select(0, torch.tensor(rows, device=logits.device))


def _best(logits: torch.Tensor) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """Best logit of each row and its token, the lowest id among equals; NaN counts as the best."""
    if not logits.shape[0]:
        return np.empty(0, dtype=np.float32), np.empty(0, dtype=np.int64)
    if logits.device.type != "cpu":
        maxima = logits.amax(dim=-1)
        ids = torch.arange(logits.shape[1], device=logits.device)
        # Which of equals torch's own argmax takes is left open.
        lowest = ids.masked_fill(logits < maxima[:, None], logits.shape[1]).amin(dim=-1)
        return maxima.cpu().numpy(), lowest.cpu().numpy()
    # NumPy's needs a tenth of torch's time.
    array = logits.numpy()
    token_ids = array.argmax(axis=-1)
    return array[np.arange(len(array)), token_ids], token_ids
