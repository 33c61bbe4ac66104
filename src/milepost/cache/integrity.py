"""The walk that proves that the cache's books balance. For tests and for finding faults; it looks at every block."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence as Many

from milepost.cache.block_pool import BlockPool, IntegrityError
from milepost.cache.index import PrefixIndex
from milepost.cache.keys import pack_block
from milepost.request import Sequence
from milepost.specs import BLOCK_SIZE


def check(pool: BlockPool, index: PrefixIndex, sequences: Many[Sequence]) -> None:
    """Raises IntegrityError unless, with `sequences` all that hold blocks:

    - every block is either in use, with as many references as block tables hold it, or free and listed once;
    - what is published is what the pool keeps, one entry per key and block;
    - a block that two sequences hold is published; one that is published holds what its holders' tokens say, at the
      same place, with its rows computed.
    """
    _check_free_list(pool)
    _check_references(pool, sequences)
    _check_index(pool, index)
    _check_tables(pool, index, sequences)


def _require(truth: bool, message: str) -> None:
    if not truth:
        raise IntegrityError(message)


def _check_free_list(pool: BlockPool) -> None:
    listed = Counter(pool.free_blocks())
    _require(len(listed) == pool.num_free, "a block is in the free list twice")
    for block in range(pool.num_blocks):
        free = pool.num_references(block) == 0
        _require(free == (block in listed), f"block {block} is {'lost' if free else 'in use and in the free list'}")


def _check_references(pool: BlockPool, sequences: Many[Sequence]) -> None:
    held = Counter(block for seq in sequences for block in seq.block_table)
    for block in range(pool.num_blocks):
        found, counted = held.pop(block, 0), pool.num_references(block)
        _require(found == counted, f"block {block} is in {found} block tables and has {counted} references")
    _require(not held, f"block tables name blocks that do not exist: {sorted(held)}")


def _check_index(pool: BlockPool, index: PrefixIndex) -> None:
    published = {entry.block for entry in index}
    findable = {block for block in range(pool.num_blocks) if pool.is_findable(block)}
    _require(published == findable, f"published and kept differ in blocks {sorted(published ^ findable)}")
    _require(len(published) == len(index), "a block is published twice")
    kept = sum(pool.num_references(block) == 0 for block in published)
    _require(kept == pool.num_kept, "a free block is kept without being published, or published without being kept")
    for entry in index:
        _require(index.at_key(entry.key) is entry, f"block {entry.block} is published under a key that finds another")
        _require(index.at_block(entry.block) is entry, f"block {entry.block} is filed under another's number")


def _check_tables(pool: BlockPool, index: PrefixIndex, sequences: Many[Sequence]) -> None:
    for seq in sequences:
        _require(len(set(seq.block_table)) == len(seq.block_table), f"{seq.request_id} holds a block twice")
        _require(
            seq.num_computed <= len(seq.block_table) * BLOCK_SIZE, f"{seq.request_id} has rows that are in no block"
        )
        for place, block in enumerate(seq.block_table):
            entry = index.at_block(block)
            if entry is None:
                _require(pool.num_references(block) == 1, f"block {block} is shared and not published")
                continue
            full = (place + 1) * BLOCK_SIZE <= seq.num_computed
            _require(full, f"block {block} of {seq.request_id} is published before its rows are computed")
            same = entry.key == seq.block_keys[place] and entry.tokens == pack_block(seq.tokens, place)
            _require(same, f"block {block} of {seq.request_id} is published as other tokens than its own")
