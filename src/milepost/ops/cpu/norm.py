"""Norms of single rows."""

from __future__ import annotations

import torch

from milepost.ops.cpu.kernels import Kernels
from milepost.ops.cpu.rows import count_rows, in_rows


def rms_norm(lib: Kernels, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return _weighted(lib, "rms_norm", x, weight, eps)


def offset_rms_norm(lib: Kernels, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return _weighted(lib, "offset_rms_norm", x, weight, eps)


def gated_rms_norm(lib: Kernels, x: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    if weight.dtype != gate.dtype:
        return gated_rms_norm(lib, x, gate.float(), weight.float(), eps).to(gate.dtype)
    assert (gate.shape, weight.shape) == (x.shape, x.shape[-1:]), f"{x.shape}, {gate.shape}, {weight.shape}"
    x, places = in_rows(x.float())
    gate, gate_places = in_rows(gate)
    weight = weight.contiguous()
    out = lib.dense_like(gate)
    run = lib.typed("gated_rms_norm", gate.dtype)
    run(x.data_ptr(), *places, gate.data_ptr(), *gate_places, weight.data_ptr(), out.data_ptr(), *count_rows(x), eps)
    return out


def l2_norm(lib: Kernels, x: torch.Tensor, eps: float, factor: float = 1.0) -> torch.Tensor:
    x, places = in_rows(x)
    out = lib.dense_like(x)
    run = lib.typed("l2_norm", x.dtype)
    run(x.data_ptr(), *places, out.data_ptr(), *count_rows(x), eps, factor)
    return out


def scan_output(
    lib: Kernels,
    y: torch.Tensor,
    x: torch.Tensor,
    skip: torch.Tensor,
    gate: torch.Tensor,
    weight: torch.Tensor | None,
    num_groups: int,
    eps: float,
    gate_first: bool,
) -> torch.Tensor:
    assert y.dtype == x.dtype == skip.dtype == torch.float32, f"the recurrence is fp32, not {y.dtype}, {x.dtype}"
    assert y.shape == x.shape == gate.shape, f"{y.shape}, {x.shape}, {gate.shape}"
    assert skip.shape == y.shape[1:], f"{skip.shape} for {y.shape}"
    assert weight is None or (weight.dtype, weight.shape) == (gate.dtype, skip.shape), f"{weight.dtype}, {gate.dtype}"
    assert y.shape[1] % num_groups == 0, f"{num_groups} equal parts of {y.shape[1]} values"
    out = lib.dense_like(gate)
    y, skip, weight = y.contiguous(), skip.contiguous(), None if weight is None else weight.contiguous()
    x, places = in_rows(x)
    gate, gate_places = in_rows(gate)
    lib.typed("scan_output", gate.dtype)(
        y.data_ptr(),
        x.data_ptr(),
        *places,
        skip.data_ptr(),
        gate.data_ptr(),
        *gate_places,
        0 if weight is None else weight.data_ptr(),
        out.data_ptr(),
        *count_rows(y),
        num_groups,
        eps,
        gate_first,
    )
    return out


def _weighted(lib: Kernels, name: str, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    assert (weight.dtype, weight.shape) == (x.dtype, x.shape[-1:]), (
        f"{weight.dtype} {weight.shape}, {x.dtype} {x.shape}"
    )
    x, places = in_rows(x)
    weight = weight.contiguous()
    out = lib.dense_like(x)
    run = lib.typed(name, x.dtype)
    run(x.data_ptr(), *places, weight.data_ptr(), out.data_ptr(), *count_rows(x), eps)
    return out
