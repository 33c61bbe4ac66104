"""Rotary position embedding."""

from __future__ import annotations

import torch

from milepost.ops.cpu.kernels import Kernels


def rope_angles(
    lib: Kernels, positions: torch.Tensor, inv_freq: torch.Tensor, factor: float
) -> tuple[torch.Tensor, torch.Tensor]:
    positions, inv_freq = positions.contiguous(), inv_freq.contiguous()
    rows, size = positions.shape[0], inv_freq.shape[0]
    cos, sin = (torch.empty(rows, size, dtype=torch.float32) for _ in range(2))
    lib.rope_angles(positions.data_ptr(), inv_freq.data_ptr(), factor, cos.data_ptr(), sin.data_ptr(), rows, size)
    return cos, sin


def rotate_half(lib: Kernels, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    x, cos, sin = x if x.stride(2) == 1 else x.contiguous(), cos.contiguous(), sin.contiguous()
    rows, heads, dim = x.shape
    out = lib.empty((rows, heads, dim), x.dtype)
    run = lib.typed("rotate_half", x.dtype)
    run(
        x.data_ptr(),
        x.stride(0),
        x.stride(1),
        cos.data_ptr(),
        sin.data_ptr(),
        out.data_ptr(),
        rows,
        heads,
        dim,
        cos.shape[1],
    )
    return out
