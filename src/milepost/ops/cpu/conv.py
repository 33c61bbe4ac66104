"""Short convolutions over time."""

from __future__ import annotations

import torch

from milepost.ops.batch import ForwardBatch
from milepost.ops.cpu.kernels import Kernels
from milepost.ops.cpu.rows import side_by_side
from milepost.specs import CHUNK


def causal_conv(
    lib: Kernels,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    state: torch.Tensor,
    window: torch.Tensor,
    batch: ForwardBatch,
    silu: bool = False,
) -> torch.Tensor:
    channels, taps = weight.shape
    assert x.dtype == weight.dtype == state.dtype == window.dtype, f"{x.dtype}, {weight.dtype}, {state.dtype}"
    assert (x.shape[1], *window.shape[1:]) == (channels, taps - 1 + CHUNK, channels), f"{x.shape}, {window.shape}"
    for buffer in (state, window):
        assert buffer.is_contiguous(), "it is written in place"
    x, weight, segments = side_by_side(x), weight.contiguous(), batch.segment_table
    out = lib.empty(x.shape, torch.float32 if silu else x.dtype)
    run = lib.typed("causal_conv_silu" if silu else "causal_conv", x.dtype)
    run(
        x.data_ptr(),
        x.stride(0),
        weight.data_ptr(),
        0 if bias is None else bias.data_ptr(),
        state.data_ptr(),
        window.data_ptr(),
        out.data_ptr(),
        channels,
        taps,
        segments.data_ptr(),
        segments.shape[0],
    )
    return out
