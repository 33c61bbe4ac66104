"""Attention over paged keys and values."""

from __future__ import annotations

import torch

from milepost.errors import ModelError
from milepost.ops.batch import ForwardBatch, KVLayer
from milepost.ops.cpu.kernels import Kernels

NO_WINDOW = 2**62


def store_kv(lib: Kernels, k: torch.Tensor, v: torch.Tensor, kv: KVLayer, slot_mapping: torch.Tensor) -> None:
    k, v = _rows_of(k, kv), _rows_of(v, kv)
    run = lib.typed("store_kv", kv.k.dtype)
    size = kv.k.shape[2] * kv.k.shape[3]
    run(
        k.data_ptr(),
        k.stride(0),
        v.data_ptr(),
        v.stride(0),
        kv.k.data_ptr(),
        kv.v.data_ptr(),
        slot_mapping.data_ptr(),
        k.shape[0],
        size,
    )


def _rows_of(x: torch.Tensor, kv: KVLayer) -> torch.Tensor:
    """x [rows, heads, head_dim] in the KV's dtype, the values of a row side by side."""
    x = x.to(kv.k.dtype)
    return x if x.stride(2) == 1 and x.stride(1) == x.shape[2] else x.contiguous()


def paged_attention(
    lib: Kernels,
    q: torch.Tensor,
    kv: KVLayer,
    batch: ForwardBatch,
    *,
    scale: float,
    window: int | None = None,
    soft_cap: float | None = None,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """`ops.torch.paged_attention`. ModelError for heads that are larger than the kernel's tiles."""
    q = q if q.stride(2) == 1 else q.contiguous()
    sinks = None if sinks is None else sinks.float().contiguous()
    rows, num_heads, head_dim = q.shape
    if head_dim > lib.MAX_HEAD_DIM:
        raise ModelError(f"attention heads of {head_dim} values", f"the kernels take at most {lib.MAX_HEAD_DIM}")
    out = lib.empty((rows, num_heads, head_dim), q.dtype)
    starts, lens, tables = batch.query_start_loc, batch.seq_lens, batch.block_tables
    where = starts.data_ptr(), lens.data_ptr(), lens.shape[0]
    shape = num_heads, kv.k.shape[2], head_dim, NO_WINDOW if window is None else window
    longest = lens if batch.longest is None else batch.longest
    scratch_bytes = lib.attention_scratch(starts.data_ptr(), longest.data_ptr(), lens.shape[0], *shape)
    scratch = lib.empty((scratch_bytes,), torch.uint8)
    run = lib.typed("attention", q.dtype)
    run(
        q.data_ptr(),
        q.stride(0),
        q.stride(1),
        kv.k.data_ptr(),
        kv.v.data_ptr(),
        tables.data_ptr(),
        tables.shape[1],
        *where,
        *shape,
        scale,
        soft_cap or 0.0,
        0 if sinks is None else sinks.data_ptr(),
        out.data_ptr(),
        scratch.data_ptr(),
    )
    return out
