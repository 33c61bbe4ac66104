"""Short convolution over time, as in front of a recurrence."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from milepost.ops.batch import ForwardBatch
from milepost.specs import CHUNK


def causal_conv(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    state: torch.Tensor,
    window: torch.Tensor,
    batch: ForwardBatch,
    silu: bool = False,
) -> torch.Tensor:
    """Depthwise causal convolution: out_t = sum over j < K of weight[:, j] x_{t - K + 1 + j}, plus bias; then, if
    wanted, silu in fp32.

    x [rows, C]; weight [C, K], the last tap for the row itself (K - 1 <= CHUNK); bias [C] or None.
    state [num_slots, K - 1, C]: the inputs of the K - 1 rows before a grid point, oldest first.
    window [num_windows, K - 1 + CHUNK, C]: first the K - 1 inputs before the grid point, then those of the chunk: the
    row at offset o in entry K - 1 + o.
    Buffers keep x's dtype. Products are summed in fp32, oldest tap first, bias last, whatever the number of rows, and
    rounded once: [rows, C] in x's dtype. With `silu` the rounded values go through it, and what it makes stays
    fp32. The order of the packed sequences does not matter.
    """
    out = torch.empty_like(x)
    before = weight.shape[1] - 1
    for seg in batch.segments:
        inputs = window[seg.window_slot]
        if seg.offset == 0:
            # the chunk before, if it was in this piece, has left its last inputs at the end of the window
            inputs[:before] = inputs[CHUNK:] if seg.state_slot is None else state[seg.state_slot]
        inputs[before + seg.offset : before + seg.end] = x[seg.rows]
        out[seg.rows] = _sum_taps(inputs[seg.offset : before + seg.end], weight, bias)
        if seg.grid_slot is not None:
            state[seg.grid_slot] = inputs[CHUNK:]
    return F.silu(out.float()) if silu else out


def _sum_taps(inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """inputs [K - 1 + n, C] to fp32 [n, C]. Products and sums are rounded apart: no fused multiply-add to depend on."""
    wide, num_rows = inputs.float(), inputs.shape[0] - weight.shape[1] + 1
    total = wide[:num_rows] * weight[:, 0]
    for tap in range(1, weight.shape[1]):
        total += wide[tap : tap + num_rows] * weight[:, tap]
    return total if bias is None else total + bias
