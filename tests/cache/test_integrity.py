"""The walk finds books that were falsified by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from milepost.cache.block_pool import IntegrityError
from milepost.cache.prefix_cache import PrefixCache
from milepost.request import Sequence
from milepost.sampling_params import SamplingParams


def running_pair() -> tuple[PrefixCache, Sequence, Sequence]:
    """Two sequences of 40 tokens that share 16; one published prefix is kept besides."""
    cache = PrefixCache(12)
    gone, first, second = (
        Sequence(name, [*range(16), *[token] * 24], 40, SamplingParams())
        for name, token in (("gone", 1), ("first", 2), ("second", 3))
    )
    for seq in (gone, first, second):
        cache.admit(seq)
        assert cache.grow(seq, 40)
        seq.num_computed = 40
        cache.publish(seq)
    cache.release(gone)
    return cache, first, second


def test_right_books_balance() -> None:
    cache, first, second = running_pair()
    assert first.block_table[0] == second.block_table[0]
    cache.check([first, second])


FALSIFICATIONS: dict[str, Callable[[PrefixCache, Sequence, Sequence], object]] = {
    "a table lost a block": lambda cache, first, second: first.block_table.pop(),
    "a table holds a stranger's block": lambda cache, first, second: first.block_table.__setitem__(1, 11),
    "a table names no block": lambda cache, first, second: first.block_table.append(99),
    "two tables hold one private block": lambda cache, first, second: first.block_table.__setitem__(
        2, second.block_table[2]
    ),
    "a reference too many": lambda cache, first, second: cache._pool.share(first.block_table[1]),
    "a block in use is in the free list": lambda cache, first, second: cache._pool._empty.append(first.block_table[1]),
    "a free block is in no list": lambda cache, first, second: cache._pool._empty.pop(),
    "a free block is listed twice": lambda cache, first, second: cache._pool._empty.append(cache._pool._empty[0]),
    "a published block is not marked": lambda cache, first, second: cache._pool.forget(first.block_table[1]),
    "a marked block is not published": lambda cache, first, second: cache._index.remove(first.block_table[1]),
    "rows are said to be computed that have no block": lambda cache, first, second: setattr(first, "num_computed", 49),
    "rows of a published block are not computed": lambda cache, first, second: setattr(first, "num_computed", 31),
    "a published block holds other tokens": lambda cache, first, second: first.tokens.__setitem__(20, 9),
    "a published block has another key": lambda cache, first, second: first.block_keys.__setitem__(1, b"other"),
}


@pytest.mark.parametrize("name", FALSIFICATIONS)
def test_false_books_do_not(name: str) -> None:
    cache, first, second = running_pair()
    FALSIFICATIONS[name](cache, first, second)
    with pytest.raises(IntegrityError):
        cache.check([first, second])


def test_a_sequence_left_out_or_unknown_is_noticed() -> None:
    cache, first, second = running_pair()
    with pytest.raises(IntegrityError, match="not those expected"):
        cache.check([first])
    cache.release(second)
    with pytest.raises(IntegrityError, match="not those expected"):
        cache.check([first, second])
