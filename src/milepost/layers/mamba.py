"""The Mamba-1 mixer (Gu and Dao, 2023)."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from milepost.layers.causal_conv import CausalConv
from milepost.layers.linear import Linear
from milepost.layers.wide import DecayRates, WideParameter
from milepost.ops import ForwardBatch, Ops
from milepost.specs import Buffer, LayerSpec, Recurrent


@dataclass(frozen=True)
class MambaShape:
    """Sizes of one mixer: `inner_size` channels with `state_size` entries each; time steps come from `dt_rank` values.
    `inner_eps`: of the norm without weights that time steps, B and C go through, None for no such norm."""

    hidden_size: int
    inner_size: int
    state_size: int
    dt_rank: int
    conv_taps: int = 4
    conv_bias: bool = True
    bias: bool = False
    inner_eps: float | None = None


class Mamba(DecayRates):
    """A projection to x and gate; a convolution over x; time steps, B and C from x; the recurrence; gate; a projection.

    Time steps, decays and all of the recurrence are fp32 whatever the model's dtype.
    """

    def __init__(self, shape: MambaShape, layer: int, ops: Ops) -> None:
        super().__init__()
        self.shape, self.layer, self.ops = shape, layer, ops
        self.in_proj = Linear(shape.hidden_size, 2 * shape.inner_size, ops, shape.bias)
        self.conv1d = CausalConv(shape.inner_size, shape.conv_taps, ops, shape.conv_bias)
        self.x_proj = Linear(shape.inner_size, shape.dt_rank + 2 * shape.state_size, ops)
        self.dt_proj = Linear(shape.dt_rank, shape.inner_size, ops, bias=True)
        self.A_log = WideParameter(torch.empty(shape.inner_size, shape.state_size), requires_grad=False)
        self.D = WideParameter(torch.empty(shape.inner_size), requires_grad=False)
        self.out_proj = Linear(shape.inner_size, shape.hidden_size, ops, shape.bias)

    def state_spec(self) -> tuple[LayerSpec, ...]:
        state, (conv, conv_window) = Buffer("state", (self.shape.inner_size, self.shape.state_size)), self.conv1d.kept()
        return (Recurrent((state, conv), (state, conv_window), cuttable=False),)

    def forward(self, x: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        """x [rows, hidden_size]; updates the layer's state, returns [rows, hidden_size]."""
        buffers = batch.recurrent[self.layer]
        assert buffers is not None, f"layer {self.layer} was given no recurrent buffers"
        inputs, gate = self.in_proj(x).chunk(2, -1)
        inputs = self.ops.silu(self.conv1d(inputs, buffers, batch))
        dt, b, c = self._selected(inputs)
        inputs = inputs.float()
        out = self.ops.selective_scan(
            inputs, dt, self.rates, b, c, buffers.checkpoint["state"], buffers.window["state"], batch
        )
        return self.out_proj(self.ops.scan_output(out, inputs, self.D, gate, None, 1, 0.0, True))

    def _selected(self, inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Time steps [rows, inner_size], B and C [rows, state_size], in fp32, from inputs [rows, inner_size]."""
        s = self.shape
        dt, b, c = (
            self._normed(part) for part in self.x_proj(inputs).split((s.dt_rank, s.state_size, s.state_size), -1)
        )
        assert self.dt_proj.bias is not None
        rates = self.ops.linear(dt, self.dt_proj.weight).float() + self.dt_proj.bias.float()
        return self.ops.softplus(rates), b.float(), c.float()

    def _normed(self, x: torch.Tensor) -> torch.Tensor:
        if self.shape.inner_eps is None:
            return x
        return self.ops.rms_norm(x, torch.ones(x.shape[-1], dtype=x.dtype, device=x.device), self.shape.inner_eps)
