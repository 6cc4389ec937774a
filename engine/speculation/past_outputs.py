"""What a deployment's answers said lately, apart for each tenant and bounded in memory."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from engine.speculation.suffixes import SuffixAutomaton, TextEnd

TENANT_TOKENS = 1 << 15
"""Tokens of one tenant after which what it said earlier begins to be forgotten."""

ALL_TOKENS = 1 << 17
"""Most tokens of all tenants: about 50 MB."""

MAX_TENANTS = 1024


class StoredAnswer:
    """Where one answer goes on in the store."""

    __slots__ = ("automaton", "end")

    def __init__(self) -> None:
        self.automaton: SuffixAutomaton | None = None
        self.end = TextEnd()


class PastOutputs:
    """Answers of many sequences, by tenant: no tenant's tokens are ever seen by another.

    A tenant has two automata at most, for nothing can be taken out of one. The younger grows to half of the
    tenant's tokens, then the older is forgotten whole. Where there are too many tenants, or too many tokens
    of all together, the tenant that has been silent longest is forgotten.

    Args:
        depth: longest substrings that are counted.
        tenant_tokens: most tokens of a tenant.
        all_tokens: most of all together, not less.

    Attributes:
        num_tokens: that are held.
    """

    def __init__(self, depth: int, tenant_tokens: int = TENANT_TOKENS, all_tokens: int = ALL_TOKENS) -> None:
        self._depth = depth
        self._half = tenant_tokens // 2
        self._all_tokens = all_tokens
        # Younger automaton first; the tenant that spoke last stands last.
        self._tenants: OrderedDict[str, list[SuffixAutomaton]] = OrderedDict()
        self.num_tokens = 0

    def automata(self, tenant: str) -> Sequence[SuffixAutomaton]:
        """What a tenant's answers said, the younger part first."""
        return self._tenants.get(tenant, ())

    def append(self, tenant: str, answer: StoredAnswer, token_ids: Sequence[int]) -> None:
        """An answer grows."""
        own = self._tenants.setdefault(tenant, [])
        self._tenants.move_to_end(tenant)
        if not own or own[0].num_tokens + len(token_ids) > self._half:
            self.num_tokens -= sum(older.num_tokens for older in own[1:])
            own[:] = [SuffixAutomaton(self._depth), *own[:1]]
        if answer.automaton is not own[0]:
            answer.automaton, answer.end = own[0], TextEnd()
        own[0].append(answer.end, token_ids)
        self.num_tokens += len(token_ids)
        while len(self._tenants) > MAX_TENANTS or (
            self.num_tokens > self._all_tokens and len(self._tenants) > 1
        ):
            _, forgotten = self._tenants.popitem(last=False)
            self.num_tokens -= sum(automaton.num_tokens for automaton in forgotten)
