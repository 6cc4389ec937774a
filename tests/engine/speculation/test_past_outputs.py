"""The store of past outputs: tenants apart, memory bounded, the newest kept."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.speculation.past_outputs import MAX_TENANTS, PastOutputs, StoredAnswer
from engine.speculation.suffixes import ROOT

DEPTH = 8


def holds(store: PastOutputs, tenant: str, text: bytes) -> bool:
    """Whether a tenant's outputs have a substring."""
    for automaton in store.automata(tenant):
        state: int | None = ROOT
        for token_id in text:
            state = None if state is None else automaton.followers(state).get(token_id)
        if state is not None:
            return True
    return False


def say(store: PastOutputs, tenant: str, text: bytes) -> None:
    store.append(tenant, StoredAnswer(), list(text))


def test_no_tenant_sees_another() -> None:
    store = PastOutputs(DEPTH)
    say(store, "a", b"secret")
    say(store, "", b"public")
    assert holds(store, "a", b"secret")
    assert not holds(store, "b", b"s")
    assert not holds(store, "", b"s")
    assert not holds(store, "a", b"p")


def test_answers_that_grow_side_by_side_stay_whole() -> None:
    store = PastOutputs(DEPTH)
    first, second = StoredAnswer(), StoredAnswer()
    for one, other in zip(b"abcdef", b"uvwxyz", strict=True):
        store.append("a", first, [one])
        store.append("a", second, [other])
    assert holds(store, "a", b"abcdef")
    assert holds(store, "a", b"uvwxyz")
    assert not holds(store, "a", b"au")


def test_the_oldest_half_is_forgotten_first() -> None:
    store = PastOutputs(DEPTH, tenant_tokens=20, all_tokens=100)
    answer = StoredAnswer()
    for text in (b"abcde", b"fghij", b"klmno", b"pqrst", b"uvwxy"):
        store.append("a", answer, list(text))
        assert holds(store, "a", text)
        assert store.num_tokens <= 20
    assert not holds(store, "a", b"a")
    assert holds(store, "a", b"klmno")


def test_the_tenant_that_was_silent_longest_is_forgotten() -> None:
    store = PastOutputs(DEPTH, tenant_tokens=20, all_tokens=25)
    say(store, "a", b"aaaaaaaaa")
    say(store, "b", b"bbbbbbbbb")
    say(store, "a", b"a")
    say(store, "c", b"ccccccccc")
    assert [holds(store, tenant, tenant.encode()) for tenant in "abc"] == [True, False, True]


def test_there_are_only_so_many_tenants() -> None:
    store = PastOutputs(DEPTH)
    for number in range(MAX_TENANTS + 1):
        say(store, f"t{number}", b"x")
    assert store.num_tokens == MAX_TENANTS
    assert not holds(store, "t0", b"x")
    assert holds(store, "t1", b"x")


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3), st.integers(1, 9)), max_size=80))
def test_memory_is_bounded_whoever_speaks(calls: list[tuple[int, int, int]]) -> None:
    store = PastOutputs(DEPTH, tenant_tokens=20, all_tokens=40)
    answers: dict[tuple[int, int], StoredAnswer] = {}
    for tenant, number, count in calls:
        answer = answers.setdefault((tenant, number), StoredAnswer())
        store.append(str(tenant), answer, [tenant] * count)
        held = [sum(part.num_tokens for part in store.automata(str(each))) for each in range(6)]
        assert store.num_tokens == sum(held) <= 40
        assert max(held) <= 20
        assert held[tenant] >= count
