"""Memory for what lives as long as a model: weights, side by side in huge pages where the system gives them.

A product reads all of a weight, page after page: with pages of 4 KiB the processor looks up a page every 64 lines, and
its own reading ahead stops at each. Weights are handed out one after the other from chunks, so that small ones share a
page; a chunk is freed with the last weight in it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from milepost.machine import advise_pages

HUGE_PAGE_BYTES = 2 << 20
CHUNK_BYTES = 64 << 20
LINE_BYTES = 64
USE_HUGE_PAGES = 14
"""`MADV_HUGEPAGE` of Linux; `mmap` has no such name elsewhere."""


class LastingMemory:
    """Hands out memory that nobody gives back piece by piece."""

    def __init__(self) -> None:
        self._chunk = torch.empty(0, dtype=torch.uint8)
        self._used = 0

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """A tensor with undefined contents that begins on a cache line."""
        num_bytes = math.prod(shape) * dtype.itemsize
        if self._used + num_bytes > self._chunk.numel():
            self._chunk, self._used = huge_pages(max(CHUNK_BYTES, num_bytes)), 0
        found = self._chunk[self._used : self._used + num_bytes]
        self._used += -(-num_bytes // LINE_BYTES) * LINE_BYTES
        return found.view(dtype).view(tuple(shape))


def huge_pages(num_bytes: int) -> torch.Tensor:
    """Whole huge pages from `num_bytes` on, not touched yet, so that they cost nothing until they are filled."""
    size = -(-num_bytes // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES
    whole = torch.empty(size + HUGE_PAGE_BYTES, dtype=torch.uint8)
    start = -whole.data_ptr() % HUGE_PAGE_BYTES
    found = whole[start : start + size]
    advise_pages(found.data_ptr(), found.data_ptr() + size, USE_HUGE_PAGES)
    return found
