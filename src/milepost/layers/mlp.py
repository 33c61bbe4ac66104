"""Feed-forward layers."""

from __future__ import annotations

import torch
from torch import nn

from milepost.layers.linear import Linear
from milepost.ops import Ops


class GatedMLP(nn.Module):
    """down(silu(gate(x)) * up(x))."""

    def __init__(self, size: int, inner_size: int, ops: Ops, bias: bool = False) -> None:
        super().__init__()
        self.gate_proj = Linear(size, inner_size, ops, bias)
        self.up_proj = Linear(size, inner_size, ops, bias)
        self.down_proj = Linear(inner_size, size, ops, bias)
        self.ops = ops

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(self.ops.silu_mul(self.gate_proj(x), self.up_proj(x)))
