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

from collections.abc import Iterator, Sequence
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

    def put(self, rows: Sequence[int], part: Sampled) -> None:
        """Takes the outcome of some rows from another sampling, whose rows they are in this order."""
        for row, token_id in zip(rows, part.token_ids, strict=True):
            self.token_ids[row] = token_id
        self.not_numbers += [rows[index] for index in part.not_numbers]
        self.stuck += [rows[index] for index in part.stuck]
        self.logprobs.update({rows[index]: logprobs for index, logprobs in part.logprobs.items()})


@dataclass(frozen=True, slots=True)
class Distributions:
    """What the tokens of R rows are drawn from.

    Attributes:
        probabilities: [R, vocab] fp32; 1 at a greedy row's token; without meaning in rows that have none.
        not_numbers: rows whose logits were not numbers.
        stuck: rows whose parameters leave no token.
    """

    probabilities: torch.Tensor
    not_numbers: list[int]
    stuck: list[int]


@dataclass(frozen=True, slots=True)
class _Undecided:
    """Rows to draw for: `rows` of `logits`, edited already, which the caller knows as `names`."""

    logits: torch.Tensor
    rows: list[int]
    names: list[int]


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
        sampled = Sampled([])
        for part in self._settle(logits, rules, sampled):
            chosen = self._drawer.draw(part.logits, part.rows, [rules[row] for row in part.names])
            for row, token_id in zip(part.names, chosen, strict=True):
                sampled.token_ids[row] = token_id
        without = {*sampled.not_numbers, *sampled.stuck}
        reported = [
            row for row, rule in enumerate(rules) if rule.params.logprobs is not None and row not in without
        ]
        if reported:
            sampled.logprobs = _report(logits, rules, reported, sampled.token_ids)
        return sampled

    def distributions(self, logits: torch.Tensor, rules: Sequence[TokenRules]) -> Distributions:
        """The distribution that `sample` draws each row's token from; arguments as there."""
        settled = Sampled([])
        probabilities = torch.zeros_like(logits)
        drawn: set[int] = set()
        for part in self._settle(logits, rules, settled):
            own = self._drawer.probabilities(part.logits, part.rows, [rules[row] for row in part.names])
            probabilities[part.names] = own
            drawn.update(part.names)
        for row, token_id in enumerate(settled.token_ids):
            if row not in drawn:
                probabilities[row, token_id] = 1.0
        return Distributions(probabilities, settled.not_numbers, settled.stuck)

    def _settle(
        self, logits: torch.Tensor, rules: Sequence[TokenRules], sampled: Sampled
    ) -> Iterator[_Undecided]:
        """Chooses for the greedy rows and finds those that have no token; yields the others in parts.

        A part is to be worked on before the next one is asked for, for they share memory.
        """
        if len(rules) != logits.shape[0]:
            raise ValueError(f"{logits.shape[0]} rows, {len(rules)} rules")
        self._drawer.begin()
        best, token_ids = _best(logits)
        sampled.token_ids = token_ids.tolist()
        # NaN and infinity show in the best; a few entries of -inf are as good as any others.
        if not np.isfinite(best).all():
            sampled.not_numbers = np.flatnonzero(~np.isfinite(best)).tolist()
        bad = set(sampled.not_numbers)
        edited: list[int] = []
        drawn: list[int] = []
        for row, rule in enumerate(rules):
            if rule.plain or row in bad:
                continue
            if rule.edits:
                edited.append(row)
            elif not rule.greedy:
                drawn.append(row)
        size = max(1, _EDITED_ELEMENTS // logits.shape[1])
        for start in range(0, len(edited), size):
            yield self._edit(logits, rules, edited[start : start + size], sampled)
        yield _Undecided(logits, drawn, drawn)

    def _edit(
        self, logits: torch.Tensor, rules: Sequence[TokenRules], rows: list[int], sampled: Sampled
    ) -> _Undecided:
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
        return _Undecided(own, drawn, [rows[index] for index in drawn])


def _report(
    logits: torch.Tensor, rules: Sequence[TokenRules], rows: list[int], token_ids: list[int]
) -> dict[int, TokenLogprobs]:
    """By row."""
    reports = token_logprobs(
        _rows(logits, rows),
        [token_ids[row] for row in rows],
        [rules[row].params.logprobs or 0 for row in rows],
    )
    return dict(zip(rows, reports, strict=True))


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
