"""Weights' memory: each has its own, on cache lines, and it goes when they go."""

import weakref

import torch

from milepost.ops.cpu.lasting import CHUNK_BYTES, HUGE_PAGE_BYTES, LINE_BYTES, LastingMemory


def test_each_has_its_own() -> None:
    memory = LastingMemory()
    shapes = [(3, 5), (1,), (64, 64), (0, 7), (1000, 333), (2, 3, 4)]
    found = [memory.empty(shape, dtype) for shape in shapes for dtype in (torch.bfloat16, torch.float32, torch.uint8)]
    for i, tensor in enumerate(found):
        tensor.fill_(i)
    for i, tensor in enumerate(found):
        assert tensor.data_ptr() % LINE_BYTES == 0
        assert tensor.is_contiguous()
        assert bool((tensor == i).all())
    assert [tuple(tensor.shape) for tensor in found[::3]] == shapes


def test_small_ones_share_huge_pages_and_large_ones_begin_with_one() -> None:
    memory = LastingMemory()
    first, second = (memory.empty((100,), torch.float32) for _ in range(2))
    assert second.data_ptr() - first.data_ptr() == 448
    assert first.data_ptr() % HUGE_PAGE_BYTES == 0
    large = memory.empty((CHUNK_BYTES + 1,), torch.uint8)
    assert large.data_ptr() % HUGE_PAGE_BYTES == 0
    large[-1] = 1


def test_a_chunk_goes_with_the_last_in_it() -> None:
    memory = LastingMemory()
    kept = memory.empty((10,), torch.float32)
    chunk = weakref.ref(memory._chunk)
    memory.empty((CHUNK_BYTES,), torch.uint8)  # a new chunk
    assert chunk() is None
    kept.fill_(1)  # its memory is still there
    assert kept.sum() == 10
