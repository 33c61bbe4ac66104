"""Softmax attention over paged KV."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from milepost.layers.linear import Linear
from milepost.ops import ForwardBatch, Ops
from milepost.specs import LayerSpec, PagedKV

Angles = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class AttentionShape:
    """Sizes of one attention layer. `window`: tokens that a row can see, None for all."""

    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    bias: bool = False
    output_bias: bool = False
    window: int | None = None


class Attention(nn.Module):
    """Queries of new rows against all stored keys and values of their own sequences; grouped heads, rotary places."""

    def __init__(self, shape: AttentionShape, layer: int, ops: Ops) -> None:
        super().__init__()
        self.shape, self.layer, self.ops = shape, layer, ops
        self.scale = shape.head_dim**-0.5
        inner, kv_inner = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
        self.q_proj = Linear(shape.hidden_size, inner, ops, shape.bias)
        self.k_proj = Linear(shape.hidden_size, kv_inner, ops, shape.bias)
        self.v_proj = Linear(shape.hidden_size, kv_inner, ops, shape.bias)
        self.o_proj = Linear(inner, shape.hidden_size, ops, shape.output_bias)

    def state_spec(self) -> tuple[LayerSpec, ...]:
        return (PagedKV(self.shape.num_kv_heads, self.shape.head_dim, self.shape.window),)

    def forward(self, x: torch.Tensor, angles: Angles, batch: ForwardBatch) -> torch.Tensor:
        """x [rows, hidden_size], angles of the rows' positions; stores the rows' KV, returns [rows, hidden_size]."""
        rows, head_dim = x.shape[0], self.shape.head_dim
        kv = batch.kv[self.layer]
        assert kv is not None, f"layer {self.layer} was given no KV"
        q = self.ops.rotate_half(self.q_proj(x).view(rows, -1, head_dim), *angles)
        k = self.ops.rotate_half(self.k_proj(x).view(rows, -1, head_dim), *angles)
        self.ops.store_kv(k, self.v_proj(x).view(rows, -1, head_dim), kv, batch.slot_mapping)
        out = self.ops.paged_attention(q, kv, batch, scale=self.scale, window=self.shape.window)
        return self.o_proj(out.reshape(rows, -1))
