"""Ids and bytes: what is handed out, what stays resident, what is given back."""

from __future__ import annotations

import random

import pytest

from milepost.cache.memory import IntegrityError, Memory
from milepost.errors import ConfigError


class Given(list[tuple[list[int], list[int]]]):
    def __call__(self, blocks: object, slots: object) -> None:
        self.append((list(blocks), list(slots)))  # type: ignore[call-overload]


def test_each_side_is_as_large_as_the_limit_and_both_share_it() -> None:
    memory = Memory(100, 10, 30)
    assert (memory.blocks.count, memory.slots.count) == (10, 3)
    assert memory.take(4, 2) is not None
    assert (memory.used_bytes, memory.free_bytes) == (100, 0)
    assert memory.take(1, 0) is None
    assert memory.take(0, 0) == ([], [])


def test_ids_are_distinct_and_slot_0_is_never_handed_out() -> None:
    memory = Memory(100, 10, 30)
    taken = memory.take(1, 3)
    assert taken is not None
    assert (len(taken[0]), sorted(taken[1])) == (1, [1, 2, 3])


def test_taking_is_all_or_nothing() -> None:
    memory = Memory(100, 10, 30)
    assert memory.take(5, 2) is None
    assert (memory.used_bytes, memory.resident_bytes) == (0, 0)


def test_freed_twice_or_never_taken_is_an_error() -> None:
    memory = Memory(100, 10, 30)
    taken = memory.take(1, 1)
    assert taken is not None
    memory.free(*taken)
    for blocks, slots in (taken, ([99], []), ([], [0])):
        with pytest.raises(IntegrityError, match="not in use"):
            memory.free(blocks, slots)


def test_warm_ids_are_used_first_and_the_others_go_back_when_one_side_grows() -> None:
    given = Given()
    memory = Memory(100, 10, 30, given)
    taken = memory.take(7, 1)
    assert taken is not None
    blocks, slots = taken
    memory.free(blocks[:6], [])
    assert memory.resident_bytes == 100
    assert memory.take(1, 0) == ([blocks[5]], [])
    assert given == []
    again = memory.take(0, 1)
    assert again is not None
    assert given == [(blocks[:3], [])]  # those free for longest
    assert memory.resident_bytes == 100
    memory.free([], [*slots, *again[1]])
    assert memory.take(8, 0) is not None
    assert len(given) == 2
    assert memory.resident_bytes <= 100


@pytest.mark.parametrize("sizes", [(10, 30), (10, 0), (0, 30), (16, 7), (3, 50)])
def test_resident_bytes_never_pass_the_limit(sizes: tuple[int, int]) -> None:
    rng, touched = random.Random(sum(sizes)), (set[int](), set[int]())

    def lose(blocks: object, slots: object) -> None:
        for side, numbers in zip(touched, (blocks, slots), strict=True):
            side.difference_update(numbers)  # type: ignore[arg-type]

    memory = Memory(200, *sizes, lose)
    held: list[tuple[list[int], list[int]]] = []
    for _ in range(2000):
        want = rng.randrange(5) if sizes[0] else 0, rng.randrange(3) if sizes[1] else 0
        taken = memory.take(*want)
        if taken is None:
            memory.free(*held.pop(rng.randrange(len(held))))
        else:
            held.append(taken)
            for side, numbers in zip(touched, taken, strict=True):
                side.update(numbers)
        assert memory.resident_bytes == len(touched[0]) * sizes[0] + len(touched[1]) * sizes[1] <= 200
        assert memory.used_bytes == sum(len(b) * sizes[0] + len(s) * sizes[1] for b, s in held)


@pytest.mark.parametrize("wrong", [(9, 10, 0), (69, 10, 30), (0, 0, 0), (100, 0, 0)])
def test_memory_that_holds_no_sequence_is_refused(wrong: tuple[int, int, int]) -> None:
    with pytest.raises(ConfigError, match="at least"):
        Memory(*wrong)
