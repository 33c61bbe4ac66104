"""Elementwise functions."""

from __future__ import annotations

from collections.abc import Callable

import torch

from milepost.ops.cpu.kernels import Kernels
from milepost.ops.cpu.rows import Places, count_rows, in_rows


def silu(lib: Kernels, x: torch.Tensor) -> torch.Tensor:
    return _each(lib, "silu", x)


def sigmoid(lib: Kernels, x: torch.Tensor) -> torch.Tensor:
    return _each(lib, "sigmoid", x)


def softplus(lib: Kernels, x: torch.Tensor) -> torch.Tensor:
    return _each(lib, "softplus", x)


def wide(lib: Kernels, x: torch.Tensor) -> torch.Tensor:
    if x.dtype == torch.float32:
        return x
    return _into(lib.typed("wide", x.dtype), x, lib.empty(x.shape, torch.float32))


def soft_cap(lib: Kernels, x: torch.Tensor, cap: float) -> torch.Tensor:
    return _each(lib, "soft_cap", x, cap)


def silu_mul(lib: Kernels, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return _pair(lib, "silu_mul", gate, up)


def gelu_tanh_mul(lib: Kernels, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return _pair(lib, "gelu_tanh_mul", gate, up)


def sigmoid_mul(lib: Kernels, gate: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    if gate.dtype != x.dtype:
        return sigmoid_mul(lib, gate.float(), x.float()).to(x.dtype)
    if gate.shape == x.shape:
        return _pair(lib, "sigmoid_mul", gate, x)
    return _by_row(lib, "sigmoid_mul_rows", gate, x)


def add(lib: Kernels, x: torch.Tensor, y: torch.Tensor, factor: float = 1.0) -> torch.Tensor:
    return _pair(lib, "add", x, y, factor)


def mul(lib: Kernels, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return _pair(lib, "mul", x, y) if x.shape == y.shape else _by_row(lib, "mul_rows", x, y)


def _each(lib: Kernels, name: str, x: torch.Tensor, *more: float) -> torch.Tensor:
    return _into(lib.typed(name, x.dtype), x, lib.dense_like(x), *more)


def _into(run: Callable[..., None], x: torch.Tensor, out: torch.Tensor, *more: float) -> torch.Tensor:
    """A dense tensor is one long row."""
    if x.is_contiguous():
        run(x.data_ptr(), 1, 0, 0, out.data_ptr(), 1, x.numel(), *more)
    else:
        x, places = in_rows(x)
        run(x.data_ptr(), *places, out.data_ptr(), *count_rows(x), *more)
    return out


def _pair(lib: Kernels, name: str, x: torch.Tensor, y: torch.Tensor, *more: float) -> torch.Tensor:
    assert (x.shape, x.dtype) == (y.shape, y.dtype), f"{x.dtype} {tuple(x.shape)} with {y.dtype} {tuple(y.shape)}"
    if x.is_contiguous() and y.is_contiguous():
        return _run_pair(lib, name, x, (1, 0, 0), y, (1, 0, 0), 1, y.numel(), *more)
    return _run_pair(lib, name, *in_rows(x), *in_rows(y), *count_rows(y), *more)


def _by_row(lib: Kernels, name: str, factor: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """One value of `factor` [..., 1] for each row of x."""
    fits = (factor.shape, factor.dtype) == ((*x.shape[:-1], 1), x.dtype)
    assert fits, f"{factor.dtype} {tuple(factor.shape)} for the rows of {x.dtype} {tuple(x.shape)}"
    return _run_pair(lib, name, *in_rows(factor), *in_rows(x), *count_rows(x))


def _run_pair(
    lib: Kernels,
    name: str,
    x: torch.Tensor,
    x_places: Places,
    y: torch.Tensor,
    y_places: Places,
    rows: int,
    size: int,
    *more: float,
) -> torch.Tensor:
    """The result has the shape and dtype of y."""
    out = lib.dense_like(y)
    run = lib.typed(name, y.dtype)
    run(x.data_ptr(), *x_places, y.data_ptr(), *y_places, out.data_ptr(), rows, size, *more)
    return out
