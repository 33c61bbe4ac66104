"""The gated delta rule."""

from __future__ import annotations

import torch

from milepost.ops.batch import ForwardBatch
from milepost.ops.torch.mamba2 import decays, extend, extend_sums, fold, outputs, read, scores


def gated_delta(
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
    """S_t = g_t S_{t-1} + k_t (x) u_t, out_t = q_t . S_t, with g_t = exp(log_g_t) and
    u_t = beta_t (v_t - g_t S_{t-1}^T k_t) (Yang, Kautz and Hatamizadeh, 2024).

    A row replaces what the state answers to its key, so its u needs those of the rows before it in the chunk; with u
    known, the rest is Mamba-2. q and k come normalised, q scaled as well.
    q, k [rows, G, K]; v [rows, H, V]; log_g, beta [rows, H]; state and windows as in `mamba2`, all fp32.
    Returns [rows, H, V].
    """
    out = torch.empty_like(v)
    carried = state[0]
    for seg in batch.segments:
        start = carried if seg.state_slot is None else state[seg.state_slot]
        keys = extend(window_k, k, seg)
        sums = extend_sums(window_log_g, log_g, seg)
        decay = decays(sums, seg.end - seg.offset, v.dtype)
        values = window_u[seg.window_slot, : seg.end]
        values[seg.offset :] = _replacements(k[seg.rows], v[seg.rows], beta[seg.rows], keys, values, sums, decay, start)
        out[seg.rows] = outputs(q[seg.rows], keys, values, sums, decay, start)
        if seg.reaches_grid:
            carried = fold(keys, values, sums, start)
            if seg.grid_slot is not None:
                state[seg.grid_slot] = carried
    return out


def _replacements(
    k: torch.Tensor,
    v: torch.Tensor,
    beta: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    sums: torch.Tensor,
    decay: torch.Tensor,
    start: torch.Tensor,
) -> torch.Tensor:
    """u of the n new rows, [n, H, V]: what the state and the window's rows answer goes to the right side, then the new
    rows' own triangle u_i + beta_i sum over new j < i of (k_i . k_j) decay_ij u_j = right_i is solved forward."""
    known = values.shape[0] - k.shape[0]
    overlap = scores(k, keys, decay)
    answers = read(k, sums, start) + overlap[:, :, :known] @ values[:known].transpose(0, 1)
    rates = beta.T[:, :, None]
    right = rates * (v.transpose(0, 1) - answers)
    solved = torch.linalg.solve_triangular(rates * overlap[:, :, known:], right, upper=False, unitriangular=True)
    return solved.transpose(0, 1)
