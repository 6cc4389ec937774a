"""One sequence on its way through the engine: its tokens, its blocks and how far it has come."""

from __future__ import annotations

from enum import Enum, auto
from math import inf
from typing import TYPE_CHECKING

from engine.api import EngineRequest, TokenLogprobs
from engine.kv.swap import SwappedKv
from engine.sampling.rules import TokenRules
from engine.speculation.tree import MAX_NODES, DraftTree

# These need torch, which what schedules sequences does not load.
if TYPE_CHECKING:
    from engine.speculation.base import Drafter
    from engine.speculation.verification.base import Verified


class SequenceStatus(Enum):
    """Where a sequence stands.

    WAITING and ASKING (for a reservation, in vain so far) hold no blocks; RESERVED, RUNNING and HELD do.
    RESERVED and HELD are never preempted.
    """

    WAITING = auto()
    ASKING = auto()
    RESERVED = auto()
    RUNNING = auto()
    HELD = auto()
    ENDED = auto()


class Sequence:
    """Mutable state of one sequence, owned by the engine's thread.

    Attributes:
        arrival: order of submission.
        rank: (priority, arrival): lower goes first, the highest is preempted first.
        hold: a prefill for another worker: draw one token, then hold the blocks. Never preempted.
        token_ids: prompt, resumed and generated tokens. The KV of the last generated one is not written
            until the next step.
        num_computed: leading tokens whose KV is written.
        recompute_last: the KV of token `num_computed` is there already, perhaps in a shared block; the next
            step computes it again for its logits or features alone and must not store it.
        blocks: physical blocks, page by page (see `engine.kv.block_manager`); mirrored in the row `row` of
            the block tables.
        block_hashes: names of the leading full pages, as far as anybody has asked for them.
        arriving: the KV of its context comes from elsewhere.
        num_dropped: for each layer group the leading pages that lie behind its window and whose blocks were
            let go: 0 in `blocks`. Empty while it holds no blocks.
        num_sealed: leading full pages that have been offered to the prefix cache.
        num_announced: leading pages named in KvReady.
        cached_tokens: leading tokens found in the prefix cache, the least of all admissions; None
            before the first one.
        context_done: the first token of this attempt has been drawn.
        rules: for the next token, kept up with `token_ids`.
        prompt_logprobs: of the prompt's tokens from the second on, as far as they are known; None where
            nobody asks for them here.
        submitted_s: monotonic time of submission.
        decoding_since_s: when it was first scheduled to decode; infinite before.
        swapped: KV that it had when it was preempted, in host memory. Only while it waits.
        drafts: what may follow its last token, to be verified in the next step; None for nothing.
        drafter: guesses for it; None for nothing.
        max_drafts: most drafts that it may have in one step.
        draft_states: what each drafter keeps for it while it holds its blocks.
    """

    __slots__ = (
        "admitted_s",
        "arrival",
        "arriving",
        "block_hashes",
        "blocks",
        "cached_tokens",
        "context_done",
        "decoding_since_s",
        "draft_states",
        "drafter",
        "drafts",
        "hold",
        "max_drafts",
        "num_announced",
        "num_computed",
        "num_dropped",
        "num_prompt",
        "num_sealed",
        "prompt_logprobs",
        "rank",
        "recompute_last",
        "request",
        "request_id",
        "row",
        "rules",
        "status",
        "submitted_s",
        "swapped",
        "token_ids",
    )

    # Set by the engine: whoever schedules does not look at them.
    rules: TokenRules

    def __init__(self, request: EngineRequest, arrival: int, hold: bool, submitted_s: float) -> None:
        self.request = request
        self.request_id = request.request_id
        self.arrival = arrival
        self.rank = (request.priority, arrival)
        self.hold = hold
        self.submitted_s = submitted_s
        self.admitted_s = submitted_s
        self.decoding_since_s = inf
        self.status = SequenceStatus.WAITING
        self.token_ids: list[int] = [*request.prompt_token_ids, *request.resumed_token_ids]
        self.num_prompt = len(request.prompt_token_ids)
        self.num_computed = 0
        self.recompute_last = False
        self.blocks: list[int] = []
        self.row = -1
        self.block_hashes: list[bytes] = []
        self.arriving = False
        self.num_dropped: list[int] = []
        self.num_sealed = 0
        self.num_announced = 0
        self.cached_tokens: int | None = None
        self.context_done = False
        wanted = request.sampling.prompt_logprobs is not None
        self.prompt_logprobs: list[TokenLogprobs] | None = [] if wanted else None
        self.swapped: SwappedKv | None = None
        self.drafts: DraftTree | None = None
        self.drafter: Drafter | None = None
        self.max_drafts = MAX_NODES - 1
        self.draft_states: dict[object, object] = {}

    @property
    def num_tokens(self) -> int:
        """Prompt, resumed and generated tokens."""
        return len(self.token_ids)

    @property
    def num_uncomputed(self) -> int:
        """Tokens that must be run before the next one can be drawn; at least 1."""
        return len(self.token_ids) - self.num_computed

    @property
    def next_index(self) -> int:
        """Index in the answer of the next token to be drawn, resumed tokens counted."""
        return len(self.token_ids) - self.num_prompt

    @property
    def needs_prompt_logits(self) -> bool:
        """Whether logits of the prompt are still wanted: then it must be computed, not found in a cache."""
        return self.prompt_logprobs is not None and len(self.prompt_logprobs) < self.num_prompt - 1

    @property
    def tokens_to_hold(self) -> int:
        """Tokens to allocate blocks for at admission: a sequence that decodes on gets its next one too."""
        return len(self.token_ids) + (0 if self.hold else 1)

    def grow(self, count: int, verified: Verified | None) -> None:
        """A pass ran `count` of its tokens, drafts included, and drew what `verified` says."""
        if verified is None:
            self.num_computed += count
            return
        if self.drafts is not None:
            count = 1 + len(verified.path)
            self.drafts = None
        self.token_ids += verified.token_ids
        # Whatever is drawn last runs in the next pass, also where it was a draft: its answer ends there.
        self.num_computed = min(self.num_computed + count, len(self.token_ids) - 1)

    def forget_progress(self) -> None:
        """Back to where nothing is computed, after its blocks were freed. Tokens and hashes stay."""
        self.num_computed = 0
        self.num_dropped = []
        self.num_sealed = 0
        self.recompute_last = False
        self.drafts = None
        self.draft_states.clear()
