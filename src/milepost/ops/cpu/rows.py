"""Where rows lie in tensors that need not be dense: kernels read views of wider tensors in place."""

from __future__ import annotations

import torch

Places = tuple[int, int, int]
"""`RowPlaces` of `csrc/rows.h`: rows of the last dimension come in groups of `inner` rows; from group to group
`outer_stride` values, from row to row `inner_stride`."""


def in_rows(x: torch.Tensor) -> tuple[torch.Tensor, Places]:
    """x [..., size] and the places of its rows; a copy of x where two strides cannot tell them."""
    if not x.is_contiguous():
        if x.stride(-1) == 1 and x.dim() == 2:
            return x, (1, x.stride(0), 0)
        if x.stride(-1) == 1 and x.dim() == 3:
            return x, (x.shape[1], x.stride(0), x.stride(1))
        x = x.contiguous()
    return x, (1, x.shape[-1], 0)


def count_rows(x: torch.Tensor) -> tuple[int, int]:
    """The number of rows of x [..., size], and size."""
    size = x.shape[-1]
    return (x.numel() // size, size) if size else (0, 0)


def side_by_side(x: torch.Tensor) -> torch.Tensor:
    """x [rows, size], or a copy of it if the values of a row do not lie side by side."""
    return x if x.stride(1) == 1 else x.contiguous()
