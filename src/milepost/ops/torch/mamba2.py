"""The recurrence with one decay per head (Mamba-2), and the chunk sums it shares with the delta rule.

Shapes: H heads, G groups of heads that share q and k (head h uses group h // (H / G)), K key size, V value size; T
rows of a chunk from its grid point on, of which the last n are new. `sums` [T, H] are sums of log decays from the grid
point, made anew from the window in float64: in fp32 a strong decay would round away the weak ones that follow it in the
chunk. A decay factor is always the exp of a difference of two sums that is <= 0: exp of one sum and of another's
negative would overflow.
"""

from __future__ import annotations

import torch

from milepost.ops.batch import ForwardBatch
from milepost.ops.chunks import Segment


def mamba2(
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
    """S_t = exp(log_g_t) S_{t-1} + k_t (x) u_t, out_t = q_t . S_t, summed chunk by chunk (Dao and Gu, 2024).

    In the paper's letters k is B, q is C, u is dt x and log_g is dt A (<= 0); D x and the gate are the layer's.
    q, k [rows, G, K]; u [rows, H, V]; log_g [rows, H]; state [num_slots, H, K, V]; window_k [num_windows, CHUNK, G, K];
    window_u [num_windows, CHUNK, H, V]; window_log_g [num_windows, CHUNK, H], as given, not summed. All fp32.
    Returns [rows, H, V].
    """
    out = torch.empty_like(u)
    carried = state[0]
    for seg in batch.segments:
        start = carried if seg.state_slot is None else state[seg.state_slot]
        keys = extend(window_k, k, seg)
        values = extend(window_u, u, seg)
        sums = extend_sums(window_log_g, log_g, seg)
        decay = decays(sums, seg.end - seg.offset, u.dtype)
        out[seg.rows] = outputs(q[seg.rows], keys, values, sums, decay, start)
        if seg.reaches_grid:
            carried = fold(keys, values, sums, start)
            if seg.grid_slot is not None:
                state[seg.grid_slot] = carried
    return out


def extend(window: torch.Tensor, new: torch.Tensor, seg: Segment) -> torch.Tensor:
    """Put the segment's rows of `new` [rows, ...] into its window; a view of the chunk's rows so far, [T, ...]."""
    chunk = window[seg.window_slot, : seg.end]
    chunk[seg.offset :] = new[seg.rows]
    return chunk


def extend_sums(window: torch.Tensor, log_g: torch.Tensor, seg: Segment) -> torch.Tensor:
    """The same for log decays [rows, H]; their sums from the grid point, float64 [T, H]."""
    return extend(window, log_g, seg).double().cumsum(0)


def decays(sums: torch.Tensor, num_new: int, dtype: torch.dtype) -> torch.Tensor:
    """What is left at new row i of chunk row j, exp(sums_i - sums_j), and 0 for j > i: [H, n, T] in `dtype`."""
    total = sums.shape[0]
    differences = sums.T[:, total - num_new :, None] - sums.T[:, None, :]
    seen = torch.ones(num_new, total, dtype=torch.bool, device=sums.device).tril(total - num_new)
    return differences.to(dtype).masked_fill(~seen, -torch.inf).exp()


def by_group(heads: torch.Tensor, groups: int) -> torch.Tensor:
    """[H, ...] as [G, H / G, ...]."""
    return heads.reshape(groups, heads.shape[0] // groups, *heads.shape[1:])


def scores(rows: torch.Tensor, keys: torch.Tensor, decay: torch.Tensor) -> torch.Tensor:
    """(rows_i . keys_j) decay_ij for rows [n, G, K], keys [T, G, K], decay [H, n, T]: [H, n, T]."""
    products = rows.transpose(0, 1) @ keys.permute(1, 2, 0)
    return (products[:, None] * by_group(decay, rows.shape[1])).flatten(0, 1)


def read(rows: torch.Tensor, sums: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
    """exp(sums_i) (rows_i . start) of new rows [n, G, K] and the state at the chunk's start [H, K, V]: [H, n, V]."""
    found = rows.transpose(0, 1)[:, None] @ by_group(start, rows.shape[1])
    return found.flatten(0, 1) * sums[-rows.shape[0] :].T.to(start.dtype).exp()[:, :, None]


def outputs(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    sums: torch.Tensor,
    decay: torch.Tensor,
    start: torch.Tensor,
) -> torch.Tensor:
    """Of new rows, exp(sums_i) (q_i . start) + sum over j <= i of (q_i . keys_j) decay_ij values_j: [n, H, V]."""
    within = scores(q, keys, decay) @ values.transpose(0, 1)
    return (read(q, sums, start) + within).transpose(0, 1)


def fold(keys: torch.Tensor, values: torch.Tensor, sums: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
    """The state after the chunk's T rows, [H, K, V]: the one at its start and every row, decayed up to there."""
    kept = values * (sums[-1] - sums).to(values.dtype).exp()[:, :, None]
    added = keys.permute(1, 2, 0)[:, None] @ by_group(kept.transpose(0, 1), keys.shape[1])
    return sums[-1].to(start.dtype).exp()[:, None, None] * start + added.flatten(0, 1)
