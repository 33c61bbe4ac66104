"""Feed-forward layers."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from milepost.errors import ModelError
from milepost.layers.linear import Linear
from milepost.ops import Ops


class GatedMLP(nn.Module):
    """down(activation(gate(x)) * up(x)); `activation` as a config spells it."""

    def __init__(self, size: int, inner_size: int, ops: Ops, bias: bool = False, activation: str = "silu") -> None:
        super().__init__()
        self.gate_proj = Linear(size, inner_size, ops, bias)
        self.up_proj = Linear(size, inner_size, ops, bias)
        self.down_proj = Linear(inner_size, size, ops, bias)
        self.gated = gated_activation(activation, ops)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(self.gated(self.gate_proj(x), self.up_proj(x)))


def gated_activation(name: str, ops: Ops) -> Callable[..., torch.Tensor]:
    """The op for activation(gate) * up; `ModelError` names the supported activations."""
    known = {"silu": ops.silu_mul, "gelu_pytorch_tanh": ops.gelu_tanh_mul}
    if name not in known:
        raise ModelError(f"activation {name!r} is not supported", f"supported: {', '.join(sorted(known))}")
    return known[name]
