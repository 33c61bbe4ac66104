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
    q: torch.Tensor,
    kv: KVLayer,
    batch: ForwardBatch,
    *,
    scale: float,
    window: int | None = None,
    soft_cap: float | None = None,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """Causal attention of each row over the stored KV of its own sequence, its own token included.

    q [rows, num_heads, head_dim], num_heads a multiple of num_kv_heads (grouped queries: Ainslie et al., 2023). A row
    at position p sees tokens max(0, p - window + 1) to p. `soft_cap` turns scaled scores into cap * tanh(score / cap)
    (Gemma 2). `sinks` [num_heads] are logits of one more column of each head, which takes its share of the softmax and
    has no value (gpt-oss). Returns [rows, num_heads, head_dim].
    """
    out = torch.empty_like(q)
    plain = soft_cap is None and sinks is None
    # our own softmax holds the scores of all heads at once: no more than 8 heads of ROW_TILE rows have
    tile = ROW_TILE if plain else max(1, ROW_TILE * 8 // q.shape[1])
    starts, lens = batch.query_start_loc.tolist(), batch.seq_lens.tolist()
    for s, length in enumerate(lens):
        num_blocks = -(-length // kv.k.shape[1])
        blocks = batch.block_tables[s, :num_blocks].long()
        keys, values = (t[blocks].flatten(0, 1)[:length].transpose(0, 1) for t in (kv.k, kv.v))
        if not plain:
            keys, values = keys.float(), values.float()
        for first in range(starts[s], starts[s + 1], tile):
            rows = slice(first, min(first + tile, starts[s + 1]))
            seen = _seen(batch.positions[rows], length, window)
            if plain:
                out[rows] = _attend(q[rows], keys[None], values[None], seen, scale)
            else:
                out[rows] = _attend_in_steps(q[rows], keys, values, seen, scale, soft_cap, sinks)
    return out


def _seen(positions: torch.Tensor, length: int, window: int | None) -> torch.Tensor:
    """Which tokens the rows at `positions` see: bool [rows, length]."""
    columns = torch.arange(length, device=positions.device)
    seen = columns <= positions[:, None]
    if window is not None:
        seen &= columns > positions[:, None] - window
    return seen


def _attend(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, seen: torch.Tensor, scale: float
) -> torch.Tensor:
    """q [rows, heads, dim] against keys, values [1, kv_heads, length, dim]."""
    attended = F.scaled_dot_product_attention(
        q.transpose(0, 1)[None], keys, values, attn_mask=seen, scale=scale, enable_gqa=keys.shape[1] != q.shape[1]
    )
    return attended[0].transpose(0, 1)


def _attend_in_steps(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    seen: torch.Tensor,
    scale: float,
    soft_cap: float | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """The same in fp32, with what torch's attention lacks. keys, values fp32 [kv_heads, length, dim]."""
    (num_rows, num_heads, head_dim), (num_kv_heads, length, _) = q.shape, keys.shape
    grouped = q.float().reshape(num_rows, num_kv_heads, -1, head_dim).permute(1, 2, 0, 3)
    scores = grouped @ keys.transpose(1, 2)[:, None] * scale
    if soft_cap is not None:
        scores = soft_cap * torch.tanh(scores / soft_cap)
    scores = scores.masked_fill(~seen, -torch.inf).reshape(num_heads, num_rows, length)
    if sinks is not None:
        scores = torch.cat([scores, sinks.float()[:, None, None].expand(-1, num_rows, 1)], dim=-1)
    weights = scores.softmax(-1)[..., :length].reshape(num_kv_heads, -1, num_rows, length)
    return (weights @ values[:, None]).flatten(0, 1).transpose(0, 1)
