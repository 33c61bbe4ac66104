"""The recurrence with one decay per channel and state entry (Mamba-1)."""

from __future__ import annotations

import torch

from milepost.ops.batch import ForwardBatch


def selective_scan(
    x: torch.Tensor,
    dt: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    state: torch.Tensor,
    window_state: torch.Tensor,
    batch: ForwardBatch,
) -> torch.Tensor:
    """h_t = exp(dt_t a) h_{t-1} + dt_t x_t (x) b_t, out_t = h_t . c_t (Gu and Dao, 2023); D x is the layer's.

    x, dt [rows, D], dt after its softplus; a [D, N], negative; b, c [rows, N]; state [num_slots, D, N];
    window_state [num_windows, D, N]: the state after the sequence's last row, void when that row reaches a grid point.
    All fp32. Returns [rows, D].

    Each pair of channel and entry decays by itself, so a chunk is no matrix product. Only h itself goes row by row, one
    call each: half the time of a scan by doubling, and the same sums for one row as for many.
    """
    out = torch.empty_like(x)
    h = state[0]
    for seg in batch.segments:
        if seg.state_slot is not None:
            h = window_state[seg.window_slot] if seg.offset else state[seg.state_slot]
        rate = dt[seg.rows]
        decay = torch.exp(rate[:, :, None] * a)
        states = (rate * x[seg.rows])[:, :, None] * b[seg.rows][:, None, :]
        for new, factor in zip(states.unbind(), decay.unbind(), strict=True):
            h = new.addcmul_(factor, h)
        out[seg.rows] = (states @ c[seg.rows][:, :, None]).squeeze(-1)
        if not seg.reaches_grid:
            window_state[seg.window_slot] = h
        elif seg.grid_slot is not None:
            state[seg.grid_slot] = h
    return out
