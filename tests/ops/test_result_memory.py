"""Results' memory: handed out again once nobody holds the tensor or a view of it, and never to two at a time."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

import pytest
import torch

from milepost.ops.cpu.lasting import HUGE_PAGE_BYTES
from milepost.ops.cpu.results import MAX_FREE, SMALL_BYTES, ResultMemory

LARGE = SMALL_BYTES
"""Bytes of the smallest tensor that is not torch's."""


def place(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def large(memory: ResultMemory, num_bytes: int = LARGE) -> torch.Tensor:
    return memory.empty((num_bytes,), torch.uint8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8, torch.int64])
@pytest.mark.parametrize("shape", [(SMALL_BYTES,), (3, 5, SMALL_BYTES // 8 + 1), (1000, 1000), (1, SMALL_BYTES, 1)])
def test_dense_tensors_of_the_shape_and_dtype(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    found = ResultMemory().empty(shape, dtype)
    assert (found.shape, found.dtype, found.device.type) == (shape, dtype, "cpu")
    assert found.is_contiguous()
    assert found.data_ptr() % HUGE_PAGE_BYTES == 0
    found.fill_(1)  # all of it is there
    assert bool((found == 1).all())


@pytest.mark.parametrize("shape", [(0,), (5, 0, 7), (1,), (SMALL_BYTES // 4 - 1,)])
def test_small_ones_are_torchs(shape: tuple[int, ...]) -> None:
    memory = ResultMemory()
    found = memory.empty(shape, torch.float32)
    assert (found.shape, found.dtype) == (shape, torch.float32)
    assert not memory._free
    assert large(memory).numel() == LARGE
    assert memory._free


def test_a_buffer_is_handed_out_again_once_its_tensor_has_gone() -> None:
    memory = ResultMemory()
    first = large(memory)
    address = place(first)
    assert place(large(memory)) != address  # this one goes at once
    del first
    assert place(large(memory)) == address  # the last one back is still in the processor's cache
    again = memory.empty((LARGE // 8, 4), torch.bfloat16)  # of any dtype and shape of that size
    assert place(again) == address


VIEWS: dict[str, Callable[[torch.Tensor], object]] = {
    "itself": lambda x: x,
    "a part": lambda x: x[10:20],
    "the last value": lambda x: x[-1],
    "another shape": lambda x: x.view(-1, 2),
    "another dtype": lambda x: x.view(torch.float32),
    "a part of a part": lambda x: x.view(-1, 4).T[1:3].unsqueeze(0),
    "parts": lambda x: x.chunk(3)[2],
    "detached": lambda x: x.detach(),
    "an array": lambda x: x.numpy()[5:],
    "a tensor of an array": lambda x: torch.from_numpy(x.numpy()[5:]),
    "a storage": lambda x: x.untyped_storage(),
    "a list": lambda x: [x],
    "a tensor over it": lambda x: torch.as_strided(x, (3,), (100,)),
}


@pytest.mark.parametrize("inference", [True, False])
@pytest.mark.parametrize("name", VIEWS)
def test_and_all_its_views(name: str, inference: bool) -> None:
    memory = ResultMemory()
    with torch.inference_mode(inference):
        tensor = large(memory)
        tensor.fill_(7)
        address = place(tensor)
        view = VIEWS[name](tensor)
        del tensor
        others = [large(memory) for _ in range(3)]
        assert all(place(other) != address for other in others)
        for other in others:
            other.fill_(1)
        if isinstance(view, torch.Tensor) and view.dtype == torch.uint8:
            assert bool((view == 7).all())
        del view
        assert place(large(memory)) == address


def test_two_that_live_never_overlap() -> None:
    memory, rng = ResultMemory(), random.Random(0)
    alive: dict[int, torch.Tensor] = {}
    for number in range(300):
        size = rng.choice((1, 1.1, 1.3, 2, 5)) * LARGE
        alive[number] = large(memory, int(size))
        alive[number].fill_(number % 251)
        for gone in rng.sample(sorted(alive), len(alive) // 8 + (len(alive) > 20)):
            tensor = alive.pop(gone)
            assert bool((tensor == gone % 251).all())
    assert all(bool((tensor == number % 251).all()) for number, tensor in alive.items())


def test_sizes_are_rounded_so_that_near_ones_share() -> None:
    memory = ResultMemory()
    address = place(large(memory, LARGE + 1))
    for num_bytes in (LARGE + 1, LARGE + 1000, LARGE * 5 // 4):
        assert place(large(memory, num_bytes)) == address
    beyond = large(memory, LARGE * 5 // 4 + 1)
    assert place(beyond) != address


@pytest.mark.parametrize("num_bytes", [LARGE, LARGE + 1, 3 * LARGE - 1, 3 * LARGE, 3 * LARGE + 1, 100 * LARGE + 3])
def test_little_is_wasted_and_nothing_lacks(num_bytes: int) -> None:
    memory = ResultMemory()
    large(memory, num_bytes)[-1] = 1
    (size,) = memory._free
    assert num_bytes <= size < num_bytes * 5 / 4
    assert size == num_bytes or num_bytes % LARGE
    assert memory._free[size][0].size >= size


def test_few_are_kept_while_nobody_uses_them() -> None:
    memory = ResultMemory()
    many = [large(memory) for _ in range(MAX_FREE + 3)]
    other = [large(memory, 3 * LARGE) for _ in range(2)]
    addresses = {place(tensor) for tensor in many}
    assert len(addresses) == MAX_FREE + 3
    del many[:]
    del other[:]
    assert sorted(len(free) for free in memory._free.values()) == [2, MAX_FREE]
    again = [large(memory) for _ in range(MAX_FREE)]
    assert {place(tensor) for tensor in again} < addresses
    assert sorted(len(free) for free in memory._free.values()) == [0, 2]


def test_two_memories_share_nothing() -> None:
    first, second = ResultMemory(), ResultMemory()
    address = place(large(first))
    assert place(large(second)) != address
    assert place(large(first)) == address


def test_threads_never_get_the_same() -> None:
    """Each fills what it gets, goes on, and must find it as it was; some are given back by another thread."""
    memory, wrong, handed = ResultMemory(), [], list[torch.Tensor]()

    def work(number: int) -> None:
        for _ in range(60):
            tensor = large(memory)
            tensor.fill_(number)
            other = large(memory)
            other.fill_(number)
            if not bool((tensor == number).all()):
                wrong.append(number)
            handed.append(other)
            del other
            if len(handed) > 3:
                handed.pop(0)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert wrong == []
    handed.clear()
    assert [len(free) <= MAX_FREE + 4 for free in memory._free.values()] == [True]
