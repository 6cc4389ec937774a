"""Blocks as sequences see them: a whole context at a time, with prefix hits, published as it fills.

A sequence gets all blocks of its context at once, never a part of them. So two sequences that each hold
half of what they need cannot wait for each other, and only decoding, one block at a time, can run short.

Where all layers attend to a window of tokens, blocks behind it are let go while the sequence runs; block 0
takes their place in its table. A context that another worker reads keeps all its blocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from engine.api import BlockHasher
from engine.kv.block_pool import SCRATCH_BLOCK, BlockPool, require
from engine.kv.block_table import BlockTables
from engine.kv.prefix_cache import PrefixCache
from engine.sequence import Sequence as EngineSequence


class BlockManager:
    """Pool, prefix cache and block tables of one engine.

    Args:
        num_blocks: blocks in the pool, the scratch block not counted.
        block_size: tokens in a block.
        max_blocks: most blocks of one sequence.
        hasher: names full blocks; None switches the prefix cache off.
        window: tokens that a token attends to in every layer, itself the last of them; 0 for all.
    """

    def __init__(
        self, num_blocks: int, block_size: int, max_blocks: int, hasher: BlockHasher | None, window: int = 0
    ) -> None:
        self.block_size = block_size
        self.window = window
        self.cache = PrefixCache(closed=not window)
        self.pool = BlockPool(num_blocks, on_evict=self.cache.evict)
        self.tables = BlockTables(max_blocks)
        self._hasher = hasher

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that `num_tokens` tokens fill, the last one perhaps in part."""
        return -(-num_tokens // self.block_size)

    def shortage_of(self, sequence: EngineSequence, num_tokens: int) -> int:
        """Available blocks that `allocate` would take: new ones, and prefix hits that nobody holds."""
        hits = self._match(sequence)
        return self._new(sequence, hits, num_tokens) + self._idle(hits)

    def allocate(self, sequence: EngineSequence, num_tokens: int, spare: int) -> int | None:
        """Gives a sequence without blocks all that `num_tokens` tokens need, prefix hits first.

        Args:
            sequence: a sequence that holds nothing.
            num_tokens: at least the sequence's tokens.
            spare: blocks that must stay available afterwards.

        Returns:
            The tokens whose KV the hits stand for (whole blocks), or None, nothing changed, for want of room.
        """
        require(not sequence.blocks, "a sequence gets its blocks while it holds none")
        hits = self._match(sequence)
        new = self._new(sequence, hits, num_tokens)
        if new + self._idle(hits) + spare > self.pool.num_available:
            return None
        # Hits first: once held, they cannot be evicted for the new ones.
        for block in hits:
            if block != SCRATCH_BLOCK:
                self.pool.acquire(block)
        behind = max(0, self.blocks_for(num_tokens) - len(hits) - new)
        sequence.blocks = hits + [SCRATCH_BLOCK] * behind + [self.pool.allocate() for _ in range(new)]
        sequence.row = self.tables.take(sequence.blocks)
        sequence.num_sealed = len(hits) + behind
        sequence.num_dropped = hits.count(SCRATCH_BLOCK) + behind
        return len(hits) * self.block_size

    def grow(self, sequence: EngineSequence) -> bool:
        """One more block at the sequence's end; False where none is left."""
        if self.pool.num_available == 0:
            return False
        block = self.pool.allocate()
        self.tables.put(sequence.row, len(sequence.blocks), block)
        sequence.blocks.append(block)
        return True

    def reach(self, sequence: EngineSequence, num_tokens: int, spare: int) -> int:
        """Grows a sequence for `num_tokens` tokens where `spare` blocks stay; the tokens it then holds."""
        wanted = min(self.blocks_for(num_tokens), self.tables.array.shape[1])
        while len(sequence.blocks) < wanted and self.pool.num_available > spare:
            self.grow(sequence)
        return len(sequence.blocks) * self.block_size

    def trim(self, sequence: EngineSequence) -> None:
        """Lets go the blocks behind the one that the sequence's next token goes to."""
        needed = self.blocks_for(sequence.tokens_to_hold)
        for index in range(len(sequence.blocks) - 1, needed - 1, -1):
            self.pool.release(sequence.blocks.pop(), keep=False)
            self.tables.put(sequence.row, index, SCRATCH_BLOCK)

    def drop_behind_window(self, sequence: EngineSequence) -> None:
        """Lets go what no token of the sequence attends to any more; published blocks stay cached."""
        if not self.window or sequence.hold:
            return
        first = self._first_seen(sequence.num_computed)
        for index in range(sequence.num_dropped, first):
            block = sequence.blocks[index]
            self.pool.release(block, keep=block in self.cache)
            sequence.blocks[index] = SCRATCH_BLOCK
            self.tables.put(sequence.row, index, SCRATCH_BLOCK)
        sequence.num_dropped = max(sequence.num_dropped, first)

    def seal(self, sequence: EngineSequence) -> None:
        """Publishes the blocks that the sequence has filled since the last call.

        Where another sequence published the same content first, this one takes that block over and
        frees its own copy: each content then has one block, held by all who hold a block after it.
        """
        full = sequence.num_computed // self.block_size
        if self._hasher is None or full <= sequence.num_sealed:
            return
        hashes = self._hashes(sequence, full)
        for index in range(sequence.num_sealed, full):
            block = sequence.blocks[index]
            parent = sequence.blocks[index - 1] if index else SCRATCH_BLOCK
            if index and not self.window and self.cache.block_of(hashes[index - 1]) != parent:
                # The parent was dropped from the cache, as wrong. A child of a block that the sequence
                # does not hold could outlive it there, so neither it nor any later block is published.
                break
            canonical = self.cache.block_of(hashes[index])
            if canonical is None:
                self.cache.publish(block, hashes[index], hashes[index - 1] if index else None)
            else:
                self.pool.acquire(canonical)
                self.pool.release(block, keep=False)
                sequence.blocks[index] = canonical
                self.tables.put(sequence.row, index, canonical)
        sequence.num_sealed = full

    def free(self, sequence: EngineSequence, unsettled: Iterable[int] = ()) -> list[int]:
        """Takes a sequence's blocks away; published ones stay cached.

        Args:
            sequence: any sequence; one without blocks is left as it is.
            unsettled: blocks of this sequence alone that go to the quarantine. Raises ValueError,
                changing nothing, where one is not the sequence's or is shared or published.

        Returns:
            The blocks that are now free.
        """
        quarantined = set(unsettled)
        own = set(sequence.blocks) - {SCRATCH_BLOCK}
        for block in quarantined:
            if block not in own or block in self.cache or self.pool.references(block) != 1:
                raise ValueError(f"block {block} is not one that {sequence.request_id} alone waits for")
        freed: list[int] = []
        # The last block first: a child is then always evicted before its parent.
        for block in reversed(sequence.blocks[sequence.num_dropped :]):
            if block in quarantined:
                self.pool.quarantine(block)
                continue
            keep = block in self.cache
            self.pool.release(block, keep)
            if not keep and self.pool.references(block) == 0:
                freed.append(block)
        if sequence.row >= 0:
            self.tables.give_back(sequence.row)
        sequence.blocks = []
        sequence.row = -1
        sequence.forget_progress()
        return freed

    def forget(self, blocks: Sequence[int]) -> list[int]:
        """Drops blocks whose content is wrong, and all that follow them, from the prefix cache.

        Returns:
            Those that nobody holds, which are free now; the holders of the others keep them.
        """
        dropped = self.cache.forget(blocks)
        freed = [block for block in dropped if self.pool.references(block) == 0]
        for block in freed:
            self.pool.discard(block)
        return freed

    def check_invariants(self, holders: Iterable[EngineSequence]) -> None:
        """Raises AssertionError naming the broken invariant. `holders` are all sequences with blocks."""
        self.pool.check_invariants()
        self.cache.check_invariants()
        counted: dict[int, int] = {}
        for sequence in holders:
            name = sequence.request_id
            row = self.tables.array[sequence.row, : len(sequence.blocks)].tolist()
            require(row == sequence.blocks, f"the block table of {name} mirrors its blocks")
            require(
                len(sequence.blocks) * self.block_size >= sequence.num_computed,
                f"the blocks of {name} hold its computed tokens",
            )
            dropped = sequence.num_dropped
            require(
                not any(sequence.blocks[:dropped]) and all(sequence.blocks[dropped:]),
                f"the blocks of {name} behind its window, and no others, are let go",
            )
            for index, block in enumerate(sequence.blocks[dropped:], dropped):
                counted[block] = counted.get(block, 0) + 1
                require(
                    index < sequence.num_sealed or (block not in self.cache),
                    f"the unfinished blocks of {name} are not published",
                )
        for block in range(1, self.pool.total + 1):
            require(
                self.pool.references(block) == counted.get(block, 0),
                f"block {block} has as many references as holders",
            )
        order = {block: place for place, block in enumerate(self.pool.cached_blocks())}
        for block, parent in self.cache.links():
            require(
                block not in order or parent not in order or order[block] < order[parent],
                f"cached block {block} is evicted before its parent {parent}",
            )
            require(
                block in order or parent not in order,
                f"whoever holds block {block} holds its parent {parent}",
            )
        require(
            all(block in self.cache for block in order),
            "a block that nobody holds is cached only while it is published",
        )

    def _match(self, sequence: EngineSequence) -> list[int]:
        """The blocks of a prefix hit; 0 for those that lie behind the window of all tokens after it."""
        if self._hasher is None or sequence.needs_prompt_logits:
            return []
        hashes = self._hashes(sequence, sequence.num_tokens // self.block_size)
        # Another worker may read any block of a held context.
        if not self.window or sequence.hold:
            return self.cache.match(hashes)
        behind = self._behind(sequence)
        # After a hit of n blocks its last token's logits may be lacking: what that token sees is needed too.
        hits = self.cache.match_reach(
            hashes, lambda n: max(behind, self._first_seen(n * self.block_size - 1))
        )
        # KV to come that begins behind the hits would leave a gap after them.
        return hits if len(hits) > behind else []

    def _behind(self, sequence: EngineSequence) -> int:
        """Leading blocks of KV to come, swapped or from elsewhere, that lie behind the window."""
        if sequence.swapped is not None:
            return sequence.swapped.first_block
        return self._first_seen(sequence.num_tokens) if sequence.arriving else 0

    def _first_seen(self, position: int) -> int:
        """First block that the token at a position attends to: itself, and `window` - 1 before it."""
        return max(0, position + 1 - self.window) // self.block_size if self.window else 0

    def _new(self, sequence: EngineSequence, hits: list[int], num_tokens: int) -> int:
        """New blocks after prefix hits, or after what lies behind the window."""
        return self.blocks_for(num_tokens) - max(len(hits), self._behind(sequence))

    def _idle(self, hits: list[int]) -> int:
        return sum(1 for block in hits if block != SCRATCH_BLOCK and self.pool.references(block) == 0)

    def _hashes(self, sequence: EngineSequence, count: int) -> list[bytes]:
        """Names of the sequence's first `count` blocks, and perhaps more; kept, for tokens only grow."""
        assert self._hasher is not None
        hashes = sequence.block_hashes
        parent = hashes[-1] if hashes else self._hasher.seed(sequence.request.cache_salt)
        for index in range(len(hashes), count):
            start = index * self.block_size
            parent = self._hasher.extend(parent, sequence.token_ids[start : start + self.block_size])
            hashes.append(parent)
        return hashes
