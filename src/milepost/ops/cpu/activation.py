"""Elementwise functions."""

from __future__ import annotations

from collections.abc import Callable

import torch

from milepost.ops.cpu.kernels import Kernels
from milepost.ops.cpu.rows import Places, count_rows, dense_like, in_rows


def silu(lib: Kernels, x: torch.Tensor) -> torch.Tensor:
    return _each(lib.silu_f32 if x.dtype == torch.float32 else lib.silu_bf16, x)


def sigmoid(lib: Kernels, x: torch.Tensor) -> torch.Tensor:
    return _each(lib.sigmoid_f32 if x.dtype == torch.float32 else lib.sigmoid_bf16, x)


def softplus(lib: Kernels, x: torch.Tensor) -> torch.Tensor:
    return _each(lib.softplus_f32 if x.dtype == torch.float32 else lib.softplus_bf16, x)


def soft_cap(lib: Kernels, x: torch.Tensor, cap: float) -> torch.Tensor:
    return _each(lib.soft_cap_f32 if x.dtype == torch.float32 else lib.soft_cap_bf16, x, cap)


def silu_mul(lib: Kernels, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return _pair(lib.silu_mul_f32 if up.dtype == torch.float32 else lib.silu_mul_bf16, gate, up)


def gelu_tanh_mul(lib: Kernels, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return _pair(lib.gelu_tanh_mul_f32 if up.dtype == torch.float32 else lib.gelu_tanh_mul_bf16, gate, up)


def sigmoid_mul(lib: Kernels, gate: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    if gate.dtype != x.dtype:
        return sigmoid_mul(lib, gate.float(), x.float()).to(x.dtype)
    if gate.shape == x.shape:
        return _pair(lib.sigmoid_mul_f32 if x.dtype == torch.float32 else lib.sigmoid_mul_bf16, gate, x)
    assert gate.shape == (*x.shape[:-1], 1), f"gates {tuple(gate.shape)} for {tuple(x.shape)}"
    run = lib.sigmoid_mul_rows_f32 if x.dtype == torch.float32 else lib.sigmoid_mul_rows_bf16
    return _run_pair(run, *in_rows(gate), *in_rows(x), *count_rows(x))


def _each(run: Callable[..., None], x: torch.Tensor, *more: float) -> torch.Tensor:
    """A dense tensor is one long row."""
    out = dense_like(x)
    if x.is_contiguous():
        run(x.data_ptr(), 1, 0, 0, out.data_ptr(), 1, x.numel(), *more)
    else:
        x, places = in_rows(x)
        run(x.data_ptr(), *places, out.data_ptr(), *count_rows(x), *more)
    return out


def _pair(run: Callable[..., None], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    assert (x.shape, x.dtype) == (y.shape, y.dtype), f"{x.dtype} {tuple(x.shape)} with {y.dtype} {tuple(y.shape)}"
    if x.is_contiguous() and y.is_contiguous():
        return _run_pair(run, x, (1, 0, 0), y, (1, 0, 0), 1, y.numel())
    return _run_pair(run, *in_rows(x), *in_rows(y), *count_rows(y))


def _run_pair(
    run: Callable[..., None], x: torch.Tensor, x_places: Places, y: torch.Tensor, y_places: Places, rows: int, size: int
) -> torch.Tensor:
    """The result has the shape and dtype of y."""
    out = dense_like(y)
    run(x.data_ptr(), *x_places, y.data_ptr(), *y_places, out.data_ptr(), rows, size)
    return out
