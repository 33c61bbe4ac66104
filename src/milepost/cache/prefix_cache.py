"""The prefix cache: which rows of a sequence need not be computed, and where its KV lives."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from milepost.cache import integrity
from milepost.cache.block_pool import BlockPool, IntegrityError
from milepost.cache.index import Entry, Parent, PrefixIndex
from milepost.cache.keys import HashFunction, digest, extend_keys, pack_block, root_key
from milepost.cache.state_slots import StateSlots
from milepost.cache.stats import CacheStats
from milepost.request import Sequence
from milepost.specs import BLOCK_SIZE


@dataclass(slots=True)
class _Holding:
    """What the cache remembers of a sequence that holds blocks.

    `num_published`: its first full blocks that can be found, each as itself or as an equal block of another sequence.
    `tail`: what its next block continues in the index. `relies_on_others`: whether any of them is not its own.
    `query`: (tokens asked for, tokens found), until counted.
    """

    num_published: int
    tail: Parent
    relies_on_others: bool = False
    query: tuple[int, int] | None = None


class PrefixCache:
    """Keeps the KV blocks of all sequences and finds what they share.

    Who owns the tokens of a running sequence (here 16 tokens are drawn as one cell):

        tokens        | shared | shared |  own   |  own   |  own.. |        |        |
        block_table   |   7    |   3    |   12   |   5    |   9    |
                      ^                 ^                   ^      ^
                      0                 resumed             |      blocks end here until grow()
                                                            num_computed

        shared   published blocks, found by admit(): read by all who hold them, written by nobody again
        own      full and computed: publish() lets others find them; still written by nobody again
        own..    the last block, partly computed: private, the only kind that is written
        rest     tokens without rows yet: no block, or one that grow() has just added

    A sequence passes through `admit`, then any number of `grow` and `publish`, then `release`, and may do so again.
    """

    def __init__(
        self,
        num_blocks: int,
        fingerprint: bytes = b"",
        *,
        enabled: bool = True,
        hash_function: HashFunction = digest,
        slots: StateSlots | None = None,
    ) -> None:
        """`fingerprint` names all that decides the bits of KV; in memory, with one model, nothing else can be met.
        Not `enabled`: sequences get their blocks and share nothing. `slots`: of a model whose layers carry states."""
        self.enabled = enabled
        self.stats = CacheStats()
        self._fingerprint = fingerprint
        self._slots = slots
        self._hash = hash_function
        self._index = PrefixIndex()
        self._pool = BlockPool(num_blocks, self._evict)
        self._holdings: dict[Sequence, _Holding] = {}

    @property
    def num_blocks(self) -> int:
        return self._pool.num_blocks

    @property
    def num_free_blocks(self) -> int:
        """Blocks that grow() could hand out; those that still hold a prefix count."""
        return self._pool.num_free

    @property
    def num_cached_blocks(self) -> int:
        """Blocks that admit() could find, in use or not."""
        return len(self._index)

    @property
    def usage(self) -> float:
        """Fraction of the blocks that sequences hold, from 0 to 1."""
        return 1 - self._pool.num_free / self._pool.num_blocks

    def reads(self, seq: Sequence) -> bool:
        """Whether `seq` may resume from a cached prefix at all: not if it needs every row, nor while disabled; nor
        where layers carry states, since none is kept for others yet and KV alone cannot be resumed."""
        return self.enabled and not seq.params.needs_every_row and self._slots is None

    def admit(self, seq: Sequence) -> int:
        """Starts `seq` on the longest prefix that is cached; returns the tokens resumed.

        Whole blocks, and at most `len(seq.tokens) - 1` tokens, since one row at least must be computed to choose the
        next token; 0 for a sequence that does not read the cache.

        Pre:  `seq` holds nothing.
        Post: `seq.block_table` are the shared blocks, one reference taken on each, `seq.num_computed` the tokens in
              them (on its first admission `seq.num_cached_tokens` too). Taking kept blocks lowers `num_free_blocks`.
        Undo: release().
        """
        if seq in self._holdings or seq.block_table:
            raise IntegrityError(f"{seq.request_id} is admitted while it holds blocks")
        if self._slots is not None:
            self._slots.admit(seq)
        reads = self.reads(seq)
        entries = self._match(seq) if reads else []
        for entry in entries:
            self._pool.share(entry.block)
            seq.block_table.append(entry.block)
        resumed = len(entries) * BLOCK_SIZE
        seq.num_computed = resumed
        if not seq.num_preemptions:
            seq.num_cached_tokens = resumed
        tail = entries[-1].serial if entries else self._scope(seq)
        query = (seq.num_tokens, resumed) if reads else None
        self._holdings[seq] = _Holding(len(entries), tail, query=query)
        return resumed

    def grow(self, seq: Sequence, num_tokens: int) -> bool:
        """Gives `seq` blocks for tokens [0, num_tokens). False, and nothing changed, if too few are free.

        Pre:  `seq` is admitted.
        Post: on True `seq.block_table` reaches `num_tokens`; the new blocks belong to `seq` alone, contents undefined.
              Kept blocks may have been taken for it: their prefixes are no longer found. `seq.grid_slots` says where
              rows [num_computed, num_tokens) write their states.
        """
        missing = -(-num_tokens // BLOCK_SIZE) - len(seq.block_table)
        blocks = self._pool.allocate(missing) if missing > 0 else []
        if blocks is None:
            return False
        seq.block_table += blocks
        if self._slots is not None:
            self._slots.grow(seq, num_tokens)
        return True

    def publish(self, seq: Sequence) -> None:
        """Lets others find the full blocks of `seq` whose rows are computed, those below `seq.num_computed`.

        Where an equal block is published already, that one stays and this one remains private.

        Pre:  `seq` is admitted, and rows [0, seq.num_computed) have run: a block found before its rows are in memory
              would hand out whatever was there.
        Post: the blocks are findable, also after release(), until they are needed for something else.
        """
        holding = self._holdings[seq]
        if self._slots is not None:
            self._slots.advance(seq)
        if holding.query is not None:
            self.stats.count(*holding.query, preempted=seq.num_preemptions > 0)
            holding.query = None
        num_full = seq.num_computed // BLOCK_SIZE
        if not self.enabled or self._slots is not None or num_full == holding.num_published:
            return
        self._extend_keys(seq, num_full)
        while holding.num_published < num_full and self._publish_next(seq, holding):
            pass

    def release(self, seq: Sequence) -> None:
        """Takes back all blocks of `seq`: at its end, abort or preemption.

        Published blocks stay findable; of those the sequence's last is used again first, so that heads, which others
        may share, live longest.

        Pre:  `seq` is admitted; IntegrityError otherwise.
        Post: `seq` holds nothing: its block table is empty, `num_computed` is 0. Its keys stay, for the next admit().
        """
        holding = self._holdings.pop(seq, None)
        if holding is None:
            raise IntegrityError(f"{seq.request_id} is released and holds nothing")
        twins = self._publish_again(seq, holding) if holding.relies_on_others else {}
        for place in reversed(range(len(seq.block_table))):
            self._pool.release(seq.block_table[place])
            if place in twins:
                self._pool.refresh(twins[place])
        if self._slots is not None:
            self._slots.release(seq)
        seq.block_table.clear()
        seq.num_computed = 0

    def piece_end(self, seq: Sequence, start: int, limit: int) -> int:
        """Where a piece of rows of `seq` that begins at `start` and may reach `limit` has to end, in (start, limit].

        KV can be cut anywhere, so this is `limit`. The scheduler asks for every piece, and knows no other reason.
        """
        return limit

    def reset(self) -> bool:
        """Forgets every prefix; False, and nothing changed, while a sequence holds blocks (vLLM's name)."""
        if self._holdings:
            return False
        for entry in self._index:
            self._pool.forget(entry.block)
        self._index.clear()
        return True

    def check(self, sequences: Iterable[Sequence]) -> None:
        """Walks all books, given every sequence that is admitted: IntegrityError where they do not balance. Slow."""
        sequences = list(sequences)
        if set(sequences) != set(self._holdings):
            raise IntegrityError("the sequences that hold blocks are not those expected")
        integrity.check(self._pool, self._index, sequences)
        if self._slots is not None:
            self._slots.check(sequences)

    def _scope(self, seq: Sequence) -> str:
        """Sequences share only within a scope. It is part of the root key, and compared on every hit of a block 0."""
        return seq.cache_salt

    def _extend_keys(self, seq: Sequence, num_blocks: int) -> None:
        if len(seq.block_keys) < num_blocks:
            root = root_key(self._fingerprint, self._scope(seq), self._hash)
            extend_keys(seq.block_keys, seq.tokens, num_blocks, root, self._hash)

    def _match(self, seq: Sequence) -> list[Entry]:
        """The entries of the longest cached prefix, which leaves at least one token to compute."""
        limit = (seq.num_tokens - 1) // BLOCK_SIZE
        self._extend_keys(seq, limit)
        entries: list[Entry] = []
        parent: Parent = self._scope(seq)
        for block in range(limit):
            entry = self._index.at_key(seq.block_keys[block])
            if entry is None or not entry.fits(parent, pack_block(seq.tokens, block)):
                break
            entries.append(entry)
            parent = entry.serial
        return entries

    def _publish_next(self, seq: Sequence, holding: _Holding) -> bool:
        """Makes the next full block of `seq` findable; False if its key is taken by a stranger that is in use."""
        place = holding.num_published
        block, key, tokens = seq.block_table[place], seq.block_keys[place], pack_block(seq.tokens, place)
        entry = self._index.at_key(key)
        if entry is None or not (entry.block == block or entry.fits(holding.tail, tokens)):
            if entry is not None and self._pool.num_references(entry.block):
                return False
            if entry is not None:
                self._forget(entry)
            entry = self._index.insert(key, holding.tail, tokens, block)
            self._pool.make_findable(block)
        elif entry.block != block:
            holding.relies_on_others = True
        entry.parent = holding.tail  # its own entry may date from before the one in front of it was replaced
        holding.tail = entry.serial
        holding.num_published += 1
        return True

    def _publish_again(self, seq: Sequence, holding: _Holding) -> dict[int, int]:
        """Publishes the chain from block 0 anew: a block of another sequence that it relied on may have been reused
        since, which would leave what follows out of reach. Returns {place in `seq`: the other's block}."""
        num_full = min(seq.num_computed // BLOCK_SIZE, len(seq.block_keys))
        holding.num_published, holding.tail = 0, self._scope(seq)
        twins = {}
        while holding.num_published < num_full and self._publish_next(seq, holding):
            place = holding.num_published - 1
            entry = self._index.at_key(seq.block_keys[place])
            if entry is not None and entry.block != seq.block_table[place]:
                twins[place] = entry.block
        return twins

    def _forget(self, entry: Entry) -> None:
        self._index.remove(entry.block)
        self._pool.forget(entry.block)

    def _evict(self, block: int) -> None:
        self._index.remove(block)
        self.stats.evicted_blocks += 1
