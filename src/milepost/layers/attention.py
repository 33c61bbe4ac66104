"""Softmax attention over paged KV."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from milepost.errors import ModelError
from milepost.layers.linear import Linear
from milepost.ops import ForwardBatch, Ops
from milepost.specs import LayerSpec, PagedKV

Angles = tuple[torch.Tensor, torch.Tensor]

MAX_HEAD_DIM = 512
"""What the kernels hold of a head; larger ones are not published."""


@dataclass(frozen=True)
class AttentionShape:
    """Sizes of one attention layer.

    `window`: tokens that a row can see, None for all. `scale`: of the scores, None for 1 / sqrt(head_dim). `soft_cap`:
    the bound that scores are bent to, None for no bound. `output_gate`: each head's result passes a gate, which q_proj
    makes beside the head's query.
    """

    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    bias: bool = False
    output_bias: bool = False
    window: int | None = None
    scale: float | None = None
    soft_cap: float | None = None
    output_gate: bool = False

    def __post_init__(self) -> None:
        if self.num_kv_heads < 1 or self.num_heads % self.num_kv_heads:
            raise ModelError(
                f"{self.num_heads} query heads cannot be shared out among {self.num_kv_heads} heads of keys and values",
                "the model's config is damaged, or of a model that this version does not know",
            )
        if not 1 <= self.head_dim <= MAX_HEAD_DIM:
            raise ModelError(
                f"a head of {self.head_dim} values is not supported, at most {MAX_HEAD_DIM}",
                "the model's config is damaged, or of a model that this version does not know",
            )


class Attention(nn.Module):
    """Queries of new rows against all stored keys and values of their own sequences; grouped heads, rotary places.

    `q_norm` and `k_norm`, if given, norm each head before it is rotated.
    """

    def __init__(
        self,
        shape: AttentionShape,
        layer: int,
        ops: Ops,
        q_norm: nn.Module | None = None,
        k_norm: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.shape, self.layer, self.ops = shape, layer, ops
        self.scale = shape.head_dim**-0.5 if shape.scale is None else shape.scale
        inner, kv_inner = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
        self.q_proj = Linear(shape.hidden_size, 2 * inner if shape.output_gate else inner, ops, shape.bias)
        self.k_proj = Linear(shape.hidden_size, kv_inner, ops, shape.bias)
        self.v_proj = Linear(shape.hidden_size, kv_inner, ops, shape.bias)
        self.o_proj = Linear(inner, shape.hidden_size, ops, shape.output_bias)
        self.q_norm, self.k_norm = q_norm, k_norm

    def state_spec(self) -> tuple[LayerSpec, ...]:
        return (PagedKV(self.shape.num_kv_heads, self.shape.head_dim, self.shape.window),)

    def forward(self, x: torch.Tensor, angles: Angles | None, batch: ForwardBatch) -> torch.Tensor:
        """x [rows, hidden_size], angles of the rows' positions (None: heads are not rotated); stores the rows' KV,
        returns [rows, hidden_size]."""
        rows, head_dim = x.shape[0], self.shape.head_dim
        kv = batch.kv[self.layer]
        assert kv is not None, f"layer {self.layer} was given no KV"
        q = self.q_proj(x).view(rows, self.shape.num_heads, -1)
        q, gate = q.chunk(2, dim=-1) if self.shape.output_gate else (q, None)
        k, v = (project(x).view(rows, -1, head_dim) for project in (self.k_proj, self.v_proj))
        q = q if self.q_norm is None else self.q_norm(q)
        k = k if self.k_norm is None else self.k_norm(k)
        if angles is not None:
            q, k = self.ops.rotate_half(q, *angles), self.ops.rotate_half(k, *angles)
        self.ops.store_kv(k, v, kv, batch.slot_mapping)
        shape = self.shape
        out = self.ops.paged_attention(q, kv, batch, scale=self.scale, window=shape.window, soft_cap=shape.soft_cap)
        out = out if gate is None else self.ops.sigmoid_mul(gate, out)
        return self.o_proj(out.reshape(rows, -1))
