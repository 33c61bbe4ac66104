import pytest

from milepost.cache.block_pool import BlockPool, IntegrityError
from milepost.errors import ConfigError


class Reused(list[int]):
    """Collects the blocks whose content is lost."""


def new_pool(num_blocks: int) -> tuple[BlockPool, Reused]:
    reused = Reused()
    return BlockPool(num_blocks, reused.append), reused


def allocate(pool: BlockPool, num_blocks: int) -> list[int]:
    blocks = pool.allocate(num_blocks)
    assert blocks is not None
    return blocks


def test_allocation_is_all_or_nothing() -> None:
    pool, _ = new_pool(4)
    blocks = allocate(pool, 3)
    assert len(set(blocks)) == 3
    assert pool.allocate(2) is None
    assert pool.num_free == 1
    assert allocate(pool, 1)[0] not in blocks
    assert pool.allocate(0) == []


def test_a_block_is_free_when_its_last_reference_goes() -> None:
    pool, _ = new_pool(2)
    (block,) = allocate(pool, 1)
    pool.share(block)
    pool.release(block)
    assert pool.num_free == 1
    pool.release(block)
    assert pool.num_free == 2


def test_double_free_is_an_error() -> None:
    pool, _ = new_pool(2)
    (block,) = allocate(pool, 1)
    pool.release(block)
    with pytest.raises(IntegrityError, match="released twice"):
        pool.release(block)


def test_an_empty_block_cannot_be_shared_nor_a_free_one_published() -> None:
    pool, _ = new_pool(2)
    with pytest.raises(IntegrityError, match="cannot be shared"):
        pool.share(0)
    with pytest.raises(IntegrityError, match="cannot be published"):
        pool.make_findable(0)


def test_empty_blocks_are_used_before_kept_ones_and_those_least_recently_released_first() -> None:
    pool, reused = new_pool(4)
    a, b, c, d = allocate(pool, 4)
    for block in (a, b, c):
        pool.make_findable(block)
    for block in (b, a, d, c):
        pool.release(block)
    assert pool.free_blocks() == [d, b, a, c]
    assert allocate(pool, 1) == [d]
    assert reused == []
    assert allocate(pool, 2) == [b, a]
    assert reused == [b, a]
    assert pool.is_findable(c)
    assert not pool.is_findable(a)


def test_a_kept_block_that_is_shared_again_counts_as_recent() -> None:
    pool, reused = new_pool(2)
    a, b = allocate(pool, 2)
    for block in (a, b):
        pool.make_findable(block)
        pool.release(block)
    pool.share(a)
    assert pool.num_free == 1
    pool.release(a)
    allocate(pool, 1)
    assert reused == [b]


def test_refresh_moves_a_kept_block_to_the_end() -> None:
    pool, reused = new_pool(2)
    a, b = allocate(pool, 2)
    for block in (a, b):
        pool.make_findable(block)
        pool.release(block)
    pool.refresh(a)
    allocate(pool, 1)
    assert reused == [b]


def test_a_forgotten_block_is_empty() -> None:
    pool, reused = new_pool(2)
    a, b = allocate(pool, 2)
    for block in (a, b):
        pool.make_findable(block)
        pool.release(block)
    pool.forget(b)
    assert (pool.num_kept, pool.num_free) == (1, 2)
    assert allocate(pool, 1) == [b]
    assert reused == []


def test_a_pool_without_blocks_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least 1 block"):
        new_pool(0)
