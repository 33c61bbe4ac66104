"""A weight in a backend's own order."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """One matrix [size_out, size_in], or several of one size, in the order that the backend's `linear` reads: only the
    ops of the backend that packed it can use `data`."""

    data: torch.Tensor
    size_out: int
    size_in: int

    @property
    def shape(self) -> torch.Size:
        """Of the matrix, or the matrices, before packing."""
        return torch.Size((*self.data.shape[:-2], self.size_out, self.size_in))

    @property
    def dtype(self) -> torch.dtype:
        return self.data.dtype

    @property
    def num_bytes(self) -> int:
        """Without the padding."""
        return self.shape.numel() * self.dtype.itemsize
