"""The Mamba-2 mixer (Dao and Gu, 2024)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import nn

from milepost.errors import ModelError
from milepost.layers.causal_conv import CausalConv
from milepost.layers.linear import Linear
from milepost.layers.wide import DecayRates, WideParameter
from milepost.ops import ForwardBatch, Ops
from milepost.specs import CHUNK, Buffer, LayerSpec, Recurrent


@dataclass(frozen=True)
class Mamba2Shape:
    """Sizes of one mixer: `num_heads` heads of `head_dim` values, each with a state of `state_size` rows; heads of one
    group share B and C. Time steps stay within `dt_limit`."""

    hidden_size: int
    num_heads: int
    head_dim: int
    state_size: int
    num_groups: int = 1
    conv_taps: int = 4
    conv_bias: bool = True
    in_bias: bool = False
    out_bias: bool = False
    dt_limit: tuple[float, float] = (0.0, math.inf)

    def __post_init__(self) -> None:
        if self.num_groups < 1 or self.num_heads % self.num_groups:
            raise ModelError(
                f"{self.num_heads} Mamba heads cannot be shared out among {self.num_groups} groups",
                "the model's config is damaged, or of a model that this version does not know",
            )

    @property
    def inner_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def group_size(self) -> int:
        """Width of B, and of C, over all groups."""
        return self.num_groups * self.state_size

    @property
    def sections(self) -> tuple[int, int, int, int, int]:
        """Widths of what the input projection gives: gate, x, B, C, time steps."""
        return self.inner_size, self.inner_size, self.group_size, self.group_size, self.num_heads


class GatedNorm(nn.Module):
    """RMS norm with `weight` [size] over each of `num_groups` equal parts of a row, and a gate through silu: applied
    before the norm, or after it. All in fp32."""

    def __init__(self, size: int, num_groups: int, eps: float, ops: Ops, gate_first: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size), requires_grad=False)
        self.num_groups, self.eps, self.gate_first = num_groups, eps, gate_first
        self.ops = ops

    def forward(self, out: torch.Tensor, x: torch.Tensor, skip: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        """Of out + x * skip, fp32 [rows, size]; gate [rows, size] in the model's dtype, and so the result."""
        return self.ops.scan_output(out, x, skip, gate, self.weight, self.num_groups, self.eps, self.gate_first)


class Mamba2(DecayRates):
    """A projection to gate, x, B, C and time steps; a convolution over x, B and C; the recurrence; gate; a projection.

    `norm`: how the result is normed and gated, None for the gate alone. `scales`: factors of the projection's five
    sections, None for 1. Time steps, decays and all of the recurrence are fp32 whatever the model's dtype.
    """

    def __init__(
        self,
        shape: Mamba2Shape,
        layer: int,
        ops: Ops,
        norm: GatedNorm | None,
        scales: tuple[float, float, float, float, float] | None = None,
    ) -> None:
        super().__init__()
        self.shape, self.layer, self.ops = shape, layer, ops
        self.in_proj = Linear(shape.hidden_size, sum(shape.sections), ops, shape.in_bias)
        self.conv1d = CausalConv(shape.inner_size + 2 * shape.group_size, shape.conv_taps, ops, shape.conv_bias)
        self.dt_bias = WideParameter(torch.empty(shape.num_heads), requires_grad=False)
        self.A_log = WideParameter(torch.empty(shape.num_heads), requires_grad=False)
        self.D = WideParameter(torch.empty(shape.num_heads), requires_grad=False)
        self.norm = norm
        self.out_proj = Linear(shape.inner_size, shape.hidden_size, ops, shape.out_bias)
        self.scales = None if scales is None else _spread(scales, shape.sections)

    def state_spec(self) -> tuple[LayerSpec, ...]:
        s, (conv, conv_window) = self.shape, self.conv1d.kept()
        state = Buffer("state", (s.num_heads, s.state_size, s.head_dim))
        window = (
            Buffer("k", (CHUNK, s.num_groups, s.state_size)),
            Buffer("u", (CHUNK, s.num_heads, s.head_dim)),
            Buffer("log_g", (CHUNK, s.num_heads)),
        )
        return (Recurrent((state, conv), (*window, conv_window)),)

    def forward(self, x: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        """x [rows, hidden_size]; updates the layer's state, returns [rows, hidden_size]."""
        s, buffers = self.shape, batch.recurrent[self.layer]
        assert buffers is not None, f"layer {self.layer} was given no recurrent buffers"
        projected = self.in_proj(x)
        if self.scales is not None:
            projected = (projected * self.scales.to(x.device)).to(x.dtype)
        gate, mixed, dt = torch.split(projected, [s.inner_size, s.inner_size + 2 * s.group_size, s.num_heads], -1)
        mixed = self.conv1d(mixed, buffers, batch, silu=True)
        inputs, keys, queries = torch.split(mixed, [s.inner_size, s.group_size, s.group_size], -1)
        by_head = inputs.view(-1, s.num_heads, s.head_dim)
        dt = self.ops.softplus(self.ops.wide(dt) + self.dt_bias).clamp(*s.dt_limit)
        window = buffers.window
        out = self.ops.mamba2(
            queries.view(-1, s.num_groups, s.state_size),
            keys.view(-1, s.num_groups, s.state_size),
            self.ops.mul(dt[:, :, None], by_head),
            dt * self.rates,
            buffers.checkpoint["state"],
            window["k"],
            window["u"],
            window["log_g"],
            batch,
        )
        out, skip = out.view(-1, s.inner_size), self.D.repeat_interleave(s.head_dim)
        if self.norm is None:
            return self.out_proj(self.ops.scan_output(out, inputs, skip, gate, None, 1, 0.0, True))
        return self.out_proj(self.norm(out, inputs, skip, gate))


def _spread(factors: tuple[float, ...], widths: tuple[int, ...]) -> torch.Tensor:
    """Each factor over its section, [sum of widths]; made on the CPU by name: the model may be built on meta."""
    return torch.cat([torch.full((n,), f, device="cpu") for f, n in zip(factors, widths, strict=True)])
