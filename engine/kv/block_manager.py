"""Blocks as sequences see them: a whole context at a time, with prefix hits, published as it fills.

A **page** is `block_size` consecutive tokens of a sequence; it has one block in each layer group. The blocks
of a sequence are listed page by page, and within a page in the order of the groups.

A sequence gets all blocks of its context at once, never a part of them. So two sequences that each hold
half of what they need cannot wait for each other, and only decoding, one page at a time, can run short.

Where the layers of a group attend to a window of tokens, their blocks behind it are let go while the sequence
runs; block 0 takes their place in its table. That holds for contexts that another worker reads too, for it
reads no further back than the window of the token that follows them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from engine.api import BlockHasher, CacheEvents
from engine.kv.block_pool import SCRATCH_BLOCK, BlockPool, require
from engine.kv.block_table import BlockTables
from engine.kv.prefix_cache import PrefixCache
from engine.kv.swap import NOT_KEPT
from engine.sequence import Sequence as EngineSequence


class BlockManager:
    """Pool, prefix caches and block tables of one engine.

    Args:
        num_blocks: blocks in the pool, the scratch block not counted.
        block_size: tokens in a block.
        max_pages: most pages of one sequence.
        hasher: names full pages; None switches the prefix cache off.
        windows: for each layer group how many tokens a token attends to, itself the last of them; 0 for all.
            The longest history first.

    Attributes:
        num_groups: blocks of a page.
        cache: the first group's. A prefix hit is never longer than what it holds, so it is the one that
            others are told of.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        max_pages: int,
        hasher: BlockHasher | None,
        windows: Sequence[int] = (0,),
    ) -> None:
        self.block_size = block_size
        self.num_groups = len(windows)
        self._windows = tuple(windows)
        self._sliding = tuple((group, window) for group, window in enumerate(windows) if window)
        self._caches = tuple(PrefixCache(closed=not window) for window in windows)
        self.cache = self._caches[0]
        self.pool = BlockPool(num_blocks, on_evict=self._evict)
        self.tables = BlockTables(max_pages * self.num_groups)
        self._hasher = hasher

    def pages_for(self, num_tokens: int) -> int:
        """Pages that `num_tokens` tokens fill, the last one perhaps in part."""
        return -(-num_tokens // self.block_size)

    def capacity_of(self, sequence: EngineSequence) -> int:
        """Tokens that the sequence's pages hold, what is let go included."""
        return len(sequence.blocks) // self.num_groups * self.block_size

    def shortage_of(self, sequence: EngineSequence, num_tokens: int) -> int:
        """Available blocks that `allocate` would take: new ones, and prefix hits that nobody holds."""
        behind = self._behind(sequence)
        hits = self._match(sequence, behind)
        return sum(self._news(num_tokens, len(hits), behind)) + self._idle(hits)

    def allocate(self, sequence: EngineSequence, num_tokens: int, spare: int) -> int | None:
        """Gives a sequence without blocks all that `num_tokens` tokens need, prefix hits first.

        Args:
            sequence: a sequence that holds nothing.
            num_tokens: at least the sequence's tokens.
            spare: blocks that must stay available afterwards.

        Returns:
            The tokens whose KV the hits stand for (whole pages), or None, nothing changed, for want of room.
        """
        require(not sequence.blocks, "a sequence gets its blocks while it holds none")
        behind = self._behind(sequence)
        hits = self._match(sequence, behind)
        news = self._news(num_tokens, len(hits), behind)
        if sum(news) + self._idle(hits) + spare > self.pool.num_available:
            return None
        # Hits first: once held, they cannot be evicted for the new ones.
        for block in hits:
            if block != SCRATCH_BLOCK:
                self.pool.acquire(block)
        found, pages = len(hits) // self.num_groups, self.pages_for(num_tokens)
        sequence.blocks = hits + [
            self.pool.allocate() if page >= pages - new else SCRATCH_BLOCK
            for page in range(found, pages)
            for new in news
        ]
        sequence.row = self.tables.take(sequence.blocks)
        sequence.num_sealed = found
        sequence.num_dropped = self._reach(found, behind)
        return found * self.block_size

    def unread_tokens(self, sequence: EngineSequence) -> int:
        """Leading tokens, in whole pages, of which no group lacks KV right after `allocate`."""
        return min(max(sequence.num_sealed, dropped) for dropped in sequence.num_dropped) * self.block_size

    def grow(self, sequence: EngineSequence) -> bool:
        """One more page at the sequence's end; False where there are no blocks for it."""
        if self.pool.num_available < self.num_groups:
            return False
        for _ in range(self.num_groups):
            block = self.pool.allocate()
            self.tables.put(sequence.row, len(sequence.blocks), block)
            sequence.blocks.append(block)
        return True

    def reach(self, sequence: EngineSequence, num_tokens: int, spare: int) -> int:
        """Grows a sequence for `num_tokens` tokens where `spare` blocks stay; the tokens it then holds."""
        wanted = min(self.pages_for(num_tokens) * self.num_groups, self.tables.array.shape[1])
        while len(sequence.blocks) < wanted and self.pool.num_available >= spare + self.num_groups:
            self.grow(sequence)
        return self.capacity_of(sequence)

    def trim(self, sequence: EngineSequence) -> None:
        """Lets go the pages behind the one that the sequence's next token goes to."""
        needed = self.pages_for(sequence.tokens_to_hold) * self.num_groups
        for index in range(len(sequence.blocks) - 1, needed - 1, -1):
            self.pool.release(sequence.blocks.pop(), keep=False)
            self.tables.put(sequence.row, index, SCRATCH_BLOCK)

    def drop_behind_window(self, sequence: EngineSequence) -> None:
        """Lets go what no token of the sequence attends to any more; published blocks stay cached."""
        for group, window in self._sliding:
            first = self._first_seen(window, sequence.num_computed)
            for page in range(sequence.num_dropped[group], first):
                index = page * self.num_groups + group
                block = sequence.blocks[index]
                self.pool.release(block, keep=block in self._caches[group])
                sequence.blocks[index] = SCRATCH_BLOCK
                self.tables.put(sequence.row, index, SCRATCH_BLOCK)
            sequence.num_dropped[group] = max(sequence.num_dropped[group], first)

    def seal(self, sequence: EngineSequence) -> None:
        """Publishes the blocks of the pages that the sequence has filled since the last call.

        Where another sequence published the same content first, this one takes that block over and
        frees its own copy: each content then has one block, held by all who hold a block after it.
        """
        full = sequence.num_computed // self.block_size
        if self._hasher is None or full <= sequence.num_sealed:
            return
        hashes = self._hashes(sequence, full)
        for page in range(sequence.num_sealed, full):
            if page and not self._holds_parents(sequence, page, hashes[page - 1]):
                break
            for group in range(self.num_groups):
                self._publish(sequence, page, group, hashes)
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
            published = any(block in cache for cache in self._caches)
            if block not in own or published or self.pool.references(block) != 1:
                raise ValueError(f"block {block} is not one that {sequence.request_id} alone waits for")
        freed: list[int] = []
        # The last block first: a child is then always evicted before its parent.
        for index in range(len(sequence.blocks) - 1, -1, -1):
            block = sequence.blocks[index]
            if block == SCRATCH_BLOCK:
                continue
            if block in quarantined:
                self.pool.quarantine(block)
                continue
            keep = block in self._caches[index % self.num_groups]
            self.pool.release(block, keep)
            if not keep and self.pool.references(block) == 0:
                freed.append(block)
        if sequence.row >= 0:
            self.tables.give_back(sequence.row)
        sequence.blocks = []
        sequence.row = -1
        sequence.forget_progress()
        return freed

    def sole_blocks(self, sequence: EngineSequence) -> int:
        """Blocks that nobody else holds: so many more are available once it is freed."""
        return sum(1 for block in sequence.blocks if self.pool.references(block) == 1)

    def forget(self, blocks: Sequence[int]) -> list[int]:
        """Drops blocks whose content is wrong, and all that follow them, from the prefix caches.

        Returns:
            Those that nobody holds, which are free now; the holders of the others keep them.
        """
        dropped = [block for cache in self._caches for block in cache.forget(blocks)]
        freed = [block for block in dropped if self.pool.references(block) == 0]
        for block in freed:
            self.pool.discard(block)
        return freed

    def take_events(self) -> CacheEvents:
        """The net changes of `cache` since the last call."""
        for cache in self._caches[1:]:
            # Nobody asks for these, and they would pile up.
            cache.take_events()
        return self.cache.take_events()

    def check_invariants(self, holders: Iterable[EngineSequence]) -> None:
        """Raises AssertionError naming the broken invariant. `holders` are all sequences with blocks."""
        self.pool.check_invariants()
        counted: dict[int, int] = {}
        for sequence in holders:
            self._check_sequence(sequence)
            for block in sequence.blocks:
                counted[block] = counted.get(block, 0) + 1
        for block in range(1, self.pool.total + 1):
            require(
                self.pool.references(block) == counted.get(block, 0),
                f"block {block} has as many references as holders",
            )
        order = {block: place for place, block in enumerate(self.pool.cached_blocks())}
        for cache in self._caches:
            cache.check_invariants()
            for block, parent in cache.links():
                require(
                    block not in order or parent not in order or order[block] < order[parent],
                    f"cached block {block} is evicted before its parent {parent}",
                )
                require(
                    block in order or parent not in order,
                    f"whoever holds block {block} holds its parent {parent}",
                )
        require(
            all(sum(block in cache for cache in self._caches) == 1 for block in order),
            "a block that nobody holds is cached only while it is published, in one group",
        )

    def _check_sequence(self, sequence: EngineSequence) -> None:
        name = sequence.request_id
        row = self.tables.array[sequence.row, : len(sequence.blocks)].tolist()
        require(row == sequence.blocks, f"the block table of {name} mirrors its blocks")
        require(len(sequence.blocks) % self.num_groups == 0, f"the pages of {name} are whole")
        require(
            self.capacity_of(sequence) >= sequence.num_computed,
            f"the blocks of {name} hold its computed tokens",
        )
        for group, (window, dropped) in enumerate(zip(self._windows, sequence.num_dropped, strict=True)):
            own = sequence.blocks[group :: self.num_groups]
            require(
                not any(own[:dropped]) and all(own[dropped:]) and (window > 0 or dropped == 0),
                f"the blocks of {name} behind its window, and no others, are let go",
            )
            require(
                not any(block in cache for block in own[sequence.num_sealed :] for cache in self._caches),
                f"the unfinished blocks of {name} are not published",
            )

    def _match(self, sequence: EngineSequence, behind: Sequence[int]) -> list[int]:
        """The blocks of a prefix hit; 0 for those that lie behind the window of all tokens after it."""
        if self._hasher is None or sequence.needs_prompt_logits:
            return []
        hashes = self._hashes(sequence, sequence.num_tokens // self.block_size)
        if self._windows == (0,):
            return self.cache.match(hashes)
        for cache, window in zip(self._caches, self._windows, strict=True):
            if not window:
                hashes = hashes[: len(cache.match(hashes))]
        longest = len(hashes)
        while longest and (lacking := self._lacking(hashes[:longest], behind)) is not None:
            # Every longer hit would reach the page that is lacking as well.
            longest = lacking
        hits: list[int] = []
        firsts = self._reach(longest, behind)
        for page, block_hash in enumerate(hashes[:longest]):
            for cache, first in zip(self._caches, firsts, strict=True):
                block = cache.block_of(block_hash) if page >= first else SCRATCH_BLOCK
                assert block is not None
                hits.append(block)
        return hits

    def _lacking(self, hashes: Sequence[bytes], behind: Sequence[int]) -> int | None:
        """The first page within reach of a hit of these pages whose block a group with a window lacks."""
        firsts = self._reach(len(hashes), behind)
        return min(
            (
                page
                for group, _ in self._sliding
                for page in range(firsts[group], len(hashes))
                if self._caches[group].block_of(hashes[page]) is None
            ),
            default=None,
        )

    def _reach(self, num_pages: int, behind: Sequence[int]) -> list[int]:
        """For each group the first page that is needed where KV is there for `num_pages`."""
        # After a hit its last token's logits may be lacking: what that token sees is needed too.
        last = num_pages * self.block_size - 1
        return [
            max(before, self._first_seen(window, last))
            for before, window in zip(behind, self._windows, strict=True)
        ]

    def _behind(self, sequence: EngineSequence) -> list[int]:
        """For each group the leading pages of KV to come, swapped or from elsewhere, behind its window."""
        swapped = sequence.swapped
        if swapped is not None:
            return [
                swapped.slots[group :: self.num_groups].count(NOT_KEPT) for group in range(self.num_groups)
            ]
        if not sequence.arriving:
            return [0] * self.num_groups
        return [self._first_seen(window, sequence.num_tokens) for window in self._windows]

    def _news(self, num_tokens: int, num_hits: int, behind: Sequence[int]) -> list[int]:
        """For each group how many new blocks come after hits, or after what lies behind its window."""
        pages, found = self.pages_for(num_tokens), num_hits // self.num_groups
        return [pages - max(found, before) for before in behind]

    def _first_seen(self, window: int, position: int) -> int:
        """First page that the token at a position attends to: itself, and `window` - 1 before it."""
        return max(0, position + 1 - window) // self.block_size if window else 0

    def _idle(self, hits: list[int]) -> int:
        return sum(1 for block in hits if block != SCRATCH_BLOCK and self.pool.references(block) == 0)

    def _holds_parents(self, sequence: EngineSequence, page: int, parent_hash: bytes) -> bool:
        """Whether each cache holds the blocks before a page that the sequence holds.

        If not, they were dropped from it, as wrong. A child of a block that the sequence does not hold could
        outlive it there, so neither it nor any later block is published.
        """
        before = (page - 1) * self.num_groups
        return all(
            window or cache.block_of(parent_hash) == sequence.blocks[before + group]
            for group, (window, cache) in enumerate(zip(self._windows, self._caches, strict=True))
        )

    def _publish(self, sequence: EngineSequence, page: int, group: int, hashes: Sequence[bytes]) -> None:
        """Publishes the block of a page, or takes over the one that has its name."""
        cache, index = self._caches[group], page * self.num_groups + group
        block = sequence.blocks[index]
        if block == SCRATCH_BLOCK:
            return
        canonical = cache.block_of(hashes[page])
        if canonical is None:
            cache.publish(block, hashes[page], hashes[page - 1] if page else None)
            return
        self.pool.acquire(canonical)
        self.pool.release(block, keep=False)
        sequence.blocks[index] = canonical
        self.tables.put(sequence.row, index, canonical)

    def _evict(self, block: int) -> None:
        next(cache for cache in self._caches if block in cache).evict(block)

    def _hashes(self, sequence: EngineSequence, count: int) -> list[bytes]:
        """Names of the sequence's first `count` pages, and perhaps more; kept, for tokens only grow."""
        assert self._hasher is not None
        hashes = sequence.block_hashes
        parent = hashes[-1] if hashes else self._hasher.seed(sequence.request.cache_salt)
        for index in range(len(hashes), count):
            start = index * self.block_size
            parent = self._hasher.extend(parent, sequence.token_ids[start : start + self.block_size])
            hashes.append(parent)
        return hashes
