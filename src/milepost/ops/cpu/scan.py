"""The recurrence with one decay per channel and state entry (Mamba-1)."""

from __future__ import annotations

import torch

from milepost.ops.batch import ForwardBatch
from milepost.ops.cpu.kernels import Kernels
from milepost.ops.cpu.rows import side_by_side


def selective_scan(
    lib: Kernels,
    x: torch.Tensor,
    dt: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    state: torch.Tensor,
    window_state: torch.Tensor,
    batch: ForwardBatch,
) -> torch.Tensor:
    for t in (x, dt, a, b, c, state, window_state):
        assert t.dtype == torch.float32, f"the recurrence runs in fp32, not {t.dtype}"
    for buffer in (state, window_state):
        assert buffer.is_contiguous(), "it is written in place"
    assert (x.shape[1], b.shape[1]) == a.shape == state.shape[1:], f"{x.shape}, {b.shape}, {a.shape}, {state.shape}"
    x, dt, b, c = (side_by_side(t) for t in (x, dt, b, c))
    a, segments = a.contiguous(), batch.segment_table
    out = lib.dense_like(x)
    lib.selective_scan(
        x.data_ptr(),
        x.stride(0),
        dt.data_ptr(),
        dt.stride(0),
        a.data_ptr(),
        b.data_ptr(),
        b.stride(0),
        c.data_ptr(),
        c.stride(0),
        state.data_ptr(),
        window_state.data_ptr(),
        out.data_ptr(),
        *a.shape,
        segments.data_ptr(),
        segments.shape[0],
    )
    return out
