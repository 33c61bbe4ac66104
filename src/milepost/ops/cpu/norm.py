"""Norms of single rows."""

from __future__ import annotations

from collections.abc import Callable

import torch

from milepost.ops.cpu.kernels import Kernels
from milepost.ops.cpu.rows import count_rows, dense_like, in_rows


def rms_norm(lib: Kernels, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return _weighted(lib.rms_norm_f32 if x.dtype == torch.float32 else lib.rms_norm_bf16, x, weight, eps)


def offset_rms_norm(lib: Kernels, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return _weighted(lib.offset_rms_norm_f32 if x.dtype == torch.float32 else lib.offset_rms_norm_bf16, x, weight, eps)


def gated_rms_norm(lib: Kernels, x: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    if weight.dtype != gate.dtype:
        return gated_rms_norm(lib, x, gate.float(), weight.float(), eps).to(gate.dtype)
    assert (gate.shape, weight.shape) == (x.shape, x.shape[-1:]), f"{x.shape}, {gate.shape}, {weight.shape}"
    x, places = in_rows(x.float())
    gate, gate_places = in_rows(gate)
    weight = weight.contiguous()
    out = dense_like(gate)
    run = lib.gated_rms_norm_f32 if gate.dtype == torch.float32 else lib.gated_rms_norm_bf16
    run(x.data_ptr(), *places, gate.data_ptr(), *gate_places, weight.data_ptr(), out.data_ptr(), *count_rows(x), eps)
    return out


def l2_norm(lib: Kernels, x: torch.Tensor, eps: float) -> torch.Tensor:
    x, places = in_rows(x)
    out = dense_like(x)
    run = lib.l2_norm_f32 if x.dtype == torch.float32 else lib.l2_norm_bf16
    run(x.data_ptr(), *places, out.data_ptr(), *count_rows(x), eps)
    return out


def _weighted(run: Callable[..., None], x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    assert (weight.dtype, weight.shape) == (x.dtype, x.shape[-1:]), (
        f"{weight.dtype} {weight.shape}, {x.dtype} {x.shape}"
    )
    x, places = in_rows(x)
    weight = weight.contiguous()
    out = dense_like(x)
    run(x.data_ptr(), *places, weight.data_ptr(), out.data_ptr(), *count_rows(x), eps)
    return out
