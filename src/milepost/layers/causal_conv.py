"""The short convolution over time in front of a recurrence, with the inputs that it keeps."""

from __future__ import annotations

import torch
from torch import nn

from milepost.errors import ModelError
from milepost.ops import ForwardBatch, Ops, RecurrentLayer
from milepost.specs import CHUNK, Buffer


class CausalConv(nn.Module):
    """Each channel over its last `taps` rows: `weight` [channels, 1, taps] and, if `bias`, `bias` [channels].

    What it keeps goes by the name "conv" in the checkpoint and in the window of the layer that it belongs to.
    """

    def __init__(self, channels: int, taps: int, ops: Ops, bias: bool = False) -> None:
        super().__init__()
        if not 1 <= taps <= CHUNK + 1:
            raise ModelError(
                f"a convolution over {taps} rows is not possible, at most {CHUNK + 1}",
                "the model's config is damaged, or of a model that this version does not know",
            )
        self.weight = nn.Parameter(torch.empty(channels, 1, taps), requires_grad=False)
        self.bias = nn.Parameter(torch.empty(channels), requires_grad=False) if bias else None
        self.ops = ops

    def kept(self) -> tuple[Buffer, Buffer]:
        """What the layer declares for it: the checkpoint's buffer and the window's, in the model's dtype."""
        channels, _, taps = self.weight.shape
        return (
            Buffer("conv", (taps - 1, channels), wide=False),
            Buffer("conv", (taps - 1 + CHUNK, channels), wide=False),
        )

    def forward(
        self, x: torch.Tensor, buffers: RecurrentLayer, batch: ForwardBatch, silu: bool = False
    ) -> torch.Tensor:
        """x [rows, channels]; returns the same shape, with `silu` through that and fp32."""
        state, window = buffers.checkpoint["conv"], buffers.window["conv"]
        return self.ops.causal_conv(x, self.weight[:, 0], self.bias, state, window, batch, silu)
