"""The gated delta rule as a layer (Yang, Kautz and Hatamizadeh, 2024), as Qwen3-Next and Qwen3.5 have it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from milepost.errors import ModelError
from milepost.layers.causal_conv import CausalConv
from milepost.layers.linear import Linear
from milepost.layers.norm import GatedRMSNorm
from milepost.layers.wide import DecayRates, WideParameter
from milepost.ops import ForwardBatch, Ops
from milepost.specs import CHUNK, Buffer, LayerSpec, Recurrent

NORM_EPS = 1e-6
"""Of the norm of each query and key."""


@dataclass(frozen=True)
class DeltaShape:
    """Sizes of one layer: `num_value_heads` heads, each with a state of `key_dim` x `value_dim`; consecutive heads
    share one of `num_key_heads` queries and keys."""

    hidden_size: int
    num_key_heads: int
    num_value_heads: int
    key_dim: int
    value_dim: int
    conv_taps: int = 4
    eps: float = 1e-6

    def __post_init__(self) -> None:
        if self.num_key_heads < 1 or self.num_value_heads % self.num_key_heads:
            raise ModelError(
                f"{self.num_value_heads} value heads cannot be shared out among {self.num_key_heads} key heads",
                "the model's config is damaged, or of a model that this version does not know",
            )

    @property
    def key_size(self) -> int:
        """Width of the queries, and of the keys, over all heads."""
        return self.num_key_heads * self.key_dim

    @property
    def value_size(self) -> int:
        """Width of the values, and of the output gate, over all heads."""
        return self.num_value_heads * self.value_dim

    @property
    def conv_sections(self) -> tuple[int, int, int]:
        """Widths of what the convolution runs over: queries, keys, values."""
        return self.key_size, self.key_size, self.value_size


@dataclass(frozen=True)
class Projected:
    """What a layer makes of its input rows: `mixed` [rows, sum of conv_sections] goes through the convolution, `gate`
    [rows, num_value_heads, value_dim] to the norm; `rate` and `decay` [rows, num_value_heads] are raw."""

    mixed: torch.Tensor
    gate: torch.Tensor
    rate: torch.Tensor
    decay: torch.Tensor


class GatedDelta(DecayRates):
    """A projection; a short convolution over queries, keys and values; the recurrence; gated norm; projection.

    Rates, decays and all of the recurrence are fp32 whatever the model's dtype. Families differ in how they store the
    first projection: see the subclasses.
    """

    def __init__(self, shape: DeltaShape, layer: int, ops: Ops) -> None:
        super().__init__()
        self.shape, self.layer, self.ops = shape, layer, ops
        self.conv1d = CausalConv(sum(shape.conv_sections), shape.conv_taps, ops)
        self.dt_bias = WideParameter(torch.empty(shape.num_value_heads), requires_grad=False)
        self.A_log = WideParameter(torch.empty(shape.num_value_heads), requires_grad=False)
        self.norm = GatedRMSNorm(shape.value_dim, shape.eps, ops)
        self.out_proj = Linear(shape.value_size, shape.hidden_size, ops)

    def project(self, x: torch.Tensor) -> Projected:
        """x [rows, hidden_size]."""
        raise NotImplementedError

    def state_spec(self) -> tuple[LayerSpec, ...]:
        s, (conv, conv_window) = self.shape, self.conv1d.kept()
        state = Buffer("state", (s.num_value_heads, s.key_dim, s.value_dim))
        window = (
            Buffer("k", (CHUNK, s.num_key_heads, s.key_dim)),
            Buffer("u", (CHUNK, s.num_value_heads, s.value_dim)),
            Buffer("log_g", (CHUNK, s.num_value_heads)),
        )
        return (Recurrent((state, conv), (*window, conv_window)),)

    def forward(self, x: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        """x [rows, hidden_size]; updates the layer's state, returns [rows, hidden_size]."""
        s, ops, buffers = self.shape, self.ops, batch.recurrent[self.layer]
        assert buffers is not None, f"layer {self.layer} was given no recurrent buffers"
        projected = self.project(x)
        mixed = self.conv1d(projected.mixed, buffers, batch, silu=True)
        q, k, v = torch.split(mixed, list(s.conv_sections), dim=-1)
        q, k = (part.view(-1, s.num_key_heads, s.key_dim) for part in (q, k))
        steps = ops.softplus(ops.wide(projected.decay) + self.dt_bias)
        window = buffers.window
        out = ops.gated_delta(
            ops.l2_norm(q, NORM_EPS, s.key_dim**-0.5),
            ops.l2_norm(k, NORM_EPS),
            v.view(-1, s.num_value_heads, s.value_dim),
            steps * self.rates,
            ops.sigmoid(ops.wide(projected.rate)),
            buffers.checkpoint["state"],
            window["k"],
            window["u"],
            window["log_g"],
            batch,
        )
        return self.out_proj(self.norm(out, projected.gate).reshape(-1, s.value_size))


class SplitGatedDelta(GatedDelta):
    """One matrix for queries, keys and values over all heads, others for the gate, the rates and the decays."""

    def __init__(self, shape: DeltaShape, layer: int, ops: Ops) -> None:
        super().__init__(shape, layer, ops)
        self.in_proj_qkv = Linear(shape.hidden_size, sum(shape.conv_sections), ops)
        self.in_proj_z = Linear(shape.hidden_size, shape.value_size, ops)
        self.in_proj_b = Linear(shape.hidden_size, shape.num_value_heads, ops)
        self.in_proj_a = Linear(shape.hidden_size, shape.num_value_heads, ops)

    def project(self, x: torch.Tensor) -> Projected:
        gate = self.in_proj_z(x).view(-1, self.shape.num_value_heads, self.shape.value_dim)
        return Projected(self.in_proj_qkv(x), gate, self.in_proj_b(x), self.in_proj_a(x))


class GroupedGatedDelta(GatedDelta):
    """Two matrices, key head by key head: its query, its key, the values and then the gates of its value heads; and
    their rates, then their decays."""

    def __init__(self, shape: DeltaShape, layer: int, ops: Ops) -> None:
        super().__init__(shape, layer, ops)
        self.in_proj_qkvz = Linear(shape.hidden_size, sum(shape.conv_sections) + shape.value_size, ops)
        self.in_proj_ba = Linear(shape.hidden_size, 2 * shape.num_value_heads, ops)

    def project(self, x: torch.Tensor) -> Projected:
        s, rows = self.shape, x.shape[0]
        by_head = self.in_proj_qkvz(x).view(rows, s.num_key_heads, -1)
        q, k, v, gate = torch.split(
            by_head, [width // s.num_key_heads for width in (*s.conv_sections, s.value_size)], -1
        )
        rate, decay = self.in_proj_ba(x).view(rows, s.num_key_heads, -1).chunk(2, dim=-1)
        return Projected(
            torch.cat([part.reshape(rows, -1) for part in (q, k, v)], dim=-1),
            gate.reshape(rows, s.num_value_heads, s.value_dim),
            rate.reshape(rows, s.num_value_heads),
            decay.reshape(rows, s.num_value_heads),
        )
