"""Prefixes that somebody has computed already, and work that is spread where nobody has."""

from __future__ import annotations

import asyncio
from collections import Counter

from kvrelay import AsyncClient, Client, Generation, Message
from tests.support.live_cluster import LiveCluster
from tests.support.live_counts import wait_published, wait_told
from tests.support.requests import prompt

PREFIX_TOKENS, TAIL_TOKENS, BLOCK_TOKENS = 1000, 100, 16


def _workers(result: Generation) -> tuple[str, str]:
    assert result.timeline is not None
    return result.timeline.prefill_worker, result.timeline.decode_worker


def test_a_hot_prefix_goes_where_its_blocks_are(cluster: LiveCluster, client: Client) -> None:
    prefix = prompt(PREFIX_TOKENS, seed=100)
    results: list[Generation] = []
    for number in range(5):
        tokens = [*prefix, *prompt(TAIL_TOKENS, seed=101 + number)]
        results.append(client.generate(token_ids=tokens, max_tokens=4, temperature=0.0))
        wait_published(cluster, tokens, *_workers(results[-1]))
        wait_told(cluster)
    cold, *hot = results
    assert cold.timeline is not None
    assert cold.usage.cached_tokens == 0
    for result in hot:
        # Whole blocks of the prefix; more than the local limit is left, so a prefill worker computes it.
        assert result.usage.prompt_tokens == PREFIX_TOKENS + TAIL_TOKENS
        assert result.usage.cached_tokens == PREFIX_TOKENS // BLOCK_TOKENS * BLOCK_TOKENS
        assert _workers(result) == _workers(cold)
        assert result.timeline is not None
        assert not result.timeline.local_prefill
        assert 0 < result.timeline.transfer_bytes < cold.timeline.transfer_bytes / 2
        assert result.timeline.prefill_s < cold.timeline.prefill_s


def test_prompts_that_nobody_has_are_spread(cluster: LiveCluster) -> None:
    async def ask() -> list[Generation]:
        async with AsyncClient(cluster.state.grpc_address, timeout=120.0) as client:
            return await asyncio.gather(
                *(
                    client.generate(token_ids=prompt(400, seed=200 + number), max_tokens=8, temperature=0.0)
                    for number in range(8)
                )
            )

    chosen = [_workers(result) for result in asyncio.run(ask())]
    prefills, decodes = (Counter(names) for names in zip(*chosen, strict=True))
    assert prefills.keys() == {"prefill-0", "prefill-1"}
    assert decodes.keys() == {"decode-0", "decode-1"}
    assert min(*prefills.values(), *decodes.values()) >= 2


def test_the_second_turn_of_a_chat_is_prefilled_where_it_is_decoded(
    cluster: LiveCluster, client: Client
) -> None:
    chat = [Message("user", "Tell me of prefixes, blocks and what a cache is good for. " * 6)]
    first = client.chat(chat, max_tokens=4, temperature=0.0)
    assert first.timeline is not None
    assert not first.timeline.local_prefill
    chat += [Message("assistant", first.text), Message("user", "And why?")]
    tokens = client.tokenize(messages=chat[:1]).token_ids
    wait_published(cluster, tokens, first.timeline.decode_worker)
    second = client.chat(chat, max_tokens=8, temperature=0.0)
    assert second.timeline is not None
    assert second.timeline.local_prefill
    assert second.timeline.placement_reason.startswith("local: ")
    assert (second.timeline.transport, second.timeline.transfer_bytes) == ("", 0)
    assert second.timeline.decode_worker == first.timeline.decode_worker
    assert second.usage.cached_tokens >= first.usage.prompt_tokens // BLOCK_TOKENS * BLOCK_TOKENS
