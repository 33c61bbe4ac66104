"""Memory for results: taken back once nobody holds the tensor any more, and handed out again.

The results of a long prompt's rows are megabytes each, and the C library gets such memory from the system anew each
time and gives it back at once: every page is then cleared and mapped before a kernel may write it, which takes longer
than many kernels do. What is handed out here lies in huge pages, and its pages stay.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from milepost.ops.cpu.lasting import huge_pages

SMALL_BYTES = 256 << 10
"""Below it, the C library reuses memory by itself."""

MAX_FREE = 8
"""Buffers of one size that are kept while nobody uses them."""

Bytes = npt.NDArray[np.uint8]


class ResultMemory:
    """Buffers by size. A tensor holds the lease of its buffer, and all that shares the tensor's memory does as well."""

    def __init__(self) -> None:
        self._free: defaultdict[int, list[Bytes]] = defaultdict(list)

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """A dense tensor with undefined contents."""
        count = math.prod(shape)
        if count * dtype.itemsize < SMALL_BYTES:
            return torch.empty(shape, dtype=dtype)
        return torch.frombuffer(self._lease(_size(count * dtype.itemsize)), dtype=dtype, count=count).view(shape)

    def _lease(self, num_bytes: int) -> _Lease:
        free = self._free[num_bytes]
        try:
            buffer = free.pop()
        except IndexError:
            buffer = huge_pages(num_bytes).numpy()
        lease = buffer.view(_Lease)
        lease.buffer, lease.free = buffer, free
        return lease


class _Lease(np.ndarray):  # type: ignore[type-arg]
    """A buffer in use; whoever drops it last frees the buffer."""

    buffer: Bytes
    free: list[Bytes] | None = None

    def __del__(self) -> None:
        if self.free is not None and len(self.free) < MAX_FREE:
            self.free.append(self.buffer)


def _size(num_bytes: int) -> int:
    """`num_bytes` rounded up to a whole number of quarters of a power of two: few sizes, little waste."""
    quarter = 1 << max(0, (num_bytes - 1).bit_length() - 3)
    return -(-num_bytes // quarter) * quarter


RESULTS = ResultMemory()
