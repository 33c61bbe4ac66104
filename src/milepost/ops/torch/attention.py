"""Attention over paged keys and values."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from milepost.ops.batch import ForwardBatch, KVLayer

ROW_TILE = 512
"""Rows whose mask exists at once: bounds the memory of a long prompt."""


def store_kv(k: torch.Tensor, v: torch.Tensor, kv: KVLayer, slot_mapping: torch.Tensor) -> None:
    """Write rows k, v [rows, num_kv_heads, head_dim] to their slots (int64 [rows]) of the paged KV."""
    kv.k.view(-1, *kv.k.shape[2:])[slot_mapping] = k
    kv.v.view(-1, *kv.v.shape[2:])[slot_mapping] = v


def paged_attention(
    q: torch.Tensor, kv: KVLayer, batch: ForwardBatch, *, scale: float, window: int | None = None
) -> torch.Tensor:
    """Causal attention of each row over the stored KV of its own sequence, its own token included.

    q [rows, num_heads, head_dim], num_heads a multiple of num_kv_heads (grouped queries: Ainslie et al., 2023). A row
    at position p sees tokens max(0, p - window + 1) to p. Returns [rows, num_heads, head_dim].
    """
    out = torch.empty_like(q)
    starts, lens = batch.query_start_loc.tolist(), batch.seq_lens.tolist()
    for s, length in enumerate(lens):
        num_blocks = -(-length // kv.k.shape[1])
        blocks = batch.block_tables[s, :num_blocks].long()
        keys, values = (t[blocks].flatten(0, 1)[:length].transpose(0, 1)[None] for t in (kv.k, kv.v))
        for first in range(starts[s], starts[s + 1], ROW_TILE):
            rows = slice(first, min(first + ROW_TILE, starts[s + 1]))
            out[rows] = _attend(q[rows], keys, values, batch.positions[rows], scale, window)
    return out


def _attend(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, positions: torch.Tensor, scale: float, window: int | None
) -> torch.Tensor:
    """q [rows, heads, dim] against keys, values [1, kv_heads, length, dim]."""
    columns = torch.arange(keys.shape[2], device=q.device)
    seen = columns <= positions[:, None]
    if window is not None:
        seen &= columns > positions[:, None] - window
    attended = F.scaled_dot_product_attention(
        q.transpose(0, 1)[None], keys, values, attn_mask=seen, scale=scale, enable_gqa=keys.shape[1] != q.shape[1]
    )
    return attended[0].transpose(0, 1)
