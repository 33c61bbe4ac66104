"""The chunked recurrences: Mamba-2 and the gated delta rule."""

from __future__ import annotations

from collections.abc import Callable

import torch

from milepost.ops.batch import ForwardBatch
from milepost.ops.cpu.kernels import Kernels
from milepost.specs import CHUNK

ACTIVE = 3
"""int64 numbers that the kernel notes of each sequence: `csrc/recurrence.h`."""


def mamba2(
    lib: Kernels,
    q: torch.Tensor,
    k: torch.Tensor,
    u: torch.Tensor,
    log_g: torch.Tensor,
    state: torch.Tensor,
    window_k: torch.Tensor,
    window_u: torch.Tensor,
    window_log_g: torch.Tensor,
    batch: ForwardBatch,
) -> torch.Tensor:
    return _run(lib, lib.mamba2, 1, q, k, u, log_g, None, state, window_k, window_u, window_log_g, batch)


def gated_delta(
    lib: Kernels,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    log_g: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
    window_k: torch.Tensor,
    window_u: torch.Tensor,
    window_log_g: torch.Tensor,
    batch: ForwardBatch,
) -> torch.Tensor:
    return _run(lib, lib.gated_delta, 2, q, k, v, log_g, beta, state, window_k, window_u, window_log_g, batch)


def _run(
    lib: Kernels,
    kernel: Callable[..., None],
    parts: int,
    q: torch.Tensor,
    k: torch.Tensor,
    u: torch.Tensor,
    log_g: torch.Tensor,
    beta: torch.Tensor | None,
    state: torch.Tensor,
    window_k: torch.Tensor,
    window_u: torch.Tensor,
    window_log_g: torch.Tensor,
    batch: ForwardBatch,
) -> torch.Tensor:
    """`parts`: dot products that the kernel keeps of each new row with a row of its chunk."""
    num_rows, heads, v_size = u.shape
    groups, k_size = q.shape[1:]
    out = lib.empty((num_rows, heads, v_size), torch.float32)
    table = batch.segment_table
    num_sequences = batch.state_slots.shape[0]
    # a wave has at most one segment of each sequence
    num_dots = min(num_rows, CHUNK * num_sequences) * groups * parts * CHUNK
    scratch = lib.empty((num_dots // 2 + ACTIVE * num_sequences,), torch.int64)
    carried = _carried(batch, state)
    q, q_stride = _rows(q, (k_size, 1))
    k, k_stride = _rows(k, (k_size, 1))
    u, u_stride = _rows(u, (v_size, 1))
    log_g, log_g_stride = _rows(log_g, (1,))
    beta, beta_stride = (None, 0) if beta is None else _rows(beta, (1,))
    kernel(
        q.data_ptr(),
        q_stride,
        k.data_ptr(),
        k_stride,
        u.data_ptr(),
        u_stride,
        log_g.data_ptr(),
        log_g_stride,
        0 if beta is None else beta.data_ptr(),
        beta_stride,
        _whole(state),
        _whole(window_k),
        _whole(window_u),
        _whole(window_log_g),
        0 if carried is None else carried.data_ptr(),
        out.data_ptr(),
        table.data_ptr(),
        table.shape[0],
        scratch.data_ptr(),
        scratch.data_ptr() + 4 * num_dots,
        heads,
        groups,
        k_size,
        v_size,
    )
    return out


def _rows(x: torch.Tensor, inner: tuple[int, ...]) -> tuple[torch.Tensor, int]:
    """x [rows, ...] and how far apart two rows are. Columns of a wider tensor stay where they are if the strides within
    a row are `inner`: those of values side by side."""
    strides = x.stride()
    if strides[1:] != inner:
        x = x.contiguous()
        return x, x.stride(0)
    return x, strides[0]


def _whole(buffer: torch.Tensor) -> int:
    """The address of a buffer that is written in place."""
    assert buffer.is_contiguous(), "kernels take states and windows whole"
    assert buffer.dtype == torch.float32, "states and windows of recurrences are fp32"
    return buffer.data_ptr()


def _carried(batch: ForwardBatch, state: torch.Tensor) -> torch.Tensor | None:
    """A state for each sequence, if a grid point inside of a piece has none."""
    if any(seg.reaches_grid and seg.grid_slot is None for seg in batch.segments):
        return torch.empty(batch.state_slots.shape[0], *state.shape[1:], dtype=torch.float32)
    return None
