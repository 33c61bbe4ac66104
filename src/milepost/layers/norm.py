"""Norms."""

from __future__ import annotations

import torch
from torch import nn

from milepost.ops import Ops


class RMSNorm(nn.Module):
    """`weight` [size]; over the last dimension."""

    def __init__(self, size: int, eps: float, ops: Ops) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size), requires_grad=False)
        self.eps = eps
        self.ops = ops

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.ops.rms_norm(x, self.weight, self.eps)


class OffsetRMSNorm(nn.Module):
    """`weight` [size], stored as its distance from 1; over the last dimension."""

    def __init__(self, size: int, eps: float, ops: Ops) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size), requires_grad=False)
        self.eps = eps
        self.ops = ops

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.ops.offset_rms_norm(x, self.weight, self.eps)


class GatedRMSNorm(nn.Module):
    """`weight` [size]; over the last dimension, then gated through silu."""

    def __init__(self, size: int, eps: float, ops: Ops) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size), requires_grad=False)
        self.eps = eps
        self.ops = ops

    def forward(self, x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        """x, gate [..., size]; returns the same in gate's dtype."""
        return self.ops.gated_rms_norm(x, gate, self.weight, self.eps)
