"""A gated short convolution in the place of attention (LFM2: Liquid AI, 2025)."""

from __future__ import annotations

import torch
from torch import nn

from milepost.errors import ModelError
from milepost.layers.causal_conv import CausalConv
from milepost.layers.linear import Linear
from milepost.ops import ForwardBatch, Ops
from milepost.specs import LayerSpec, Recurrent


class ShortConv(nn.Module):
    """C * conv(B * x) between two projections; the first makes B, C and x of each row. With `bias`, all have one."""

    def __init__(self, size: int, taps: int, layer: int, ops: Ops, bias: bool = False) -> None:
        super().__init__()
        if taps < 2:
            raise ModelError(
                f"a short convolution over {taps} rows keeps nothing of what came before",
                "the model's config is damaged, or of a model that this version does not know",
            )
        self.layer, self.ops = layer, ops
        self.in_proj = Linear(size, 3 * size, ops, bias)
        self.conv = CausalConv(size, taps, ops, bias)
        self.out_proj = Linear(size, size, ops, bias)

    def state_spec(self) -> tuple[LayerSpec, ...]:
        checkpoint, window = self.conv.kept()
        return (Recurrent((checkpoint,), (window,)),)

    def forward(self, x: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        """x [rows, size]; updates the layer's state, returns [rows, size]."""
        buffers = batch.recurrent[self.layer]
        assert buffers is not None, f"layer {self.layer} was given no recurrent buffers"
        before, after, inner = self.in_proj(x).chunk(3, dim=-1)
        mul = self.ops.mul
        return self.out_proj(mul(after, self.conv(mul(before, inner), buffers, batch)))
