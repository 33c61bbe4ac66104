"""`kernels.c`, compiled when first used, as functions with gradients: what training spends most time on, on a CPU.

`available()` is False where there is no C compiler; then `delta.py` and torch's convolution do the same, more slowly.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import torch

SOURCE = Path(__file__).with_name("kernels.c")
TAPS, DIM, KEEP = 4, 64, 16
FLAGS = ("-O3", "-march=native", "-mprefer-vector-width=512", "-ffast-math", "-shared", "-fPIC")


def available() -> bool:
    return _library() is not None


@cache
def _library() -> ctypes.CDLL | None:
    compiler = shutil.which("gcc")
    if compiler is None:
        return None
    name = hashlib.sha256(SOURCE.read_bytes() + " ".join(FLAGS).encode()).hexdigest()[:16]
    target = Path(tempfile.gettempdir()) / f"milepost-tiny-{os.getuid()}-{name}.so"
    if not target.exists():
        beside = target.with_suffix(f".{os.getpid()}")
        subprocess.run([compiler, *FLAGS, str(SOURCE), "-o", str(beside), "-lm"], check=True)
        beside.replace(target)
    return ctypes.CDLL(str(target))


def _call(name: str, *args: torch.Tensor | int | float) -> None:
    library = _library()
    assert library is not None
    getattr(library, name)(*(_plain(arg) for arg in args))


def _plain(arg: torch.Tensor | int | float) -> ctypes.c_int64 | ctypes.c_float | ctypes.c_void_p:
    if isinstance(arg, torch.Tensor):
        assert arg.dtype == torch.float32
        assert arg.is_contiguous()
        return ctypes.c_void_p(arg.data_ptr())
    return ctypes.c_int64(arg) if isinstance(arg, int) else ctypes.c_float(arg)


class _ConvSilu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, taps: torch.Tensor) -> torch.Tensor:
        y = torch.empty_like(x)
        _call("conv_silu", x, taps, y, *x.shape)
        ctx.save_for_backward(x, taps)
        return y

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, taps = ctx.saved_tensors
        dx, dtaps = torch.zeros_like(x), torch.zeros_like(taps)
        _call("conv_silu_gradient", x, taps, grads[0].contiguous(), dx, dtaps, *x.shape)
        return dx, dtaps


class _Delta(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, mixed: torch.Tensor, g: torch.Tensor, beta: torch.Tensor) -> torch.Tensor:
        rows, tokens, heads = g.shape
        out = mixed.new_empty(rows, tokens, heads, DIM)
        kept = mixed.new_empty(rows, heads, -(-tokens // KEEP), DIM, DIM)
        _call("delta", mixed, g, beta, out, kept, rows, tokens, heads)
        ctx.save_for_backward(mixed, g, beta, kept)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, ...]:
        mixed, g, beta, kept = ctx.saved_tensors
        found = tuple(torch.empty_like(x) for x in (mixed, g, beta))
        _call("delta_gradient", mixed, g, beta, kept, grads[0].contiguous(), *found, *g.shape)
        return found


class _GatedNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        y = torch.empty_like(x)
        _call("gated_norm", x, gate, weight, y, x.numel() // DIM, eps)
        ctx.save_for_backward(x, gate, weight)
        ctx.eps = eps
        return y

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, gate, weight = ctx.saved_tensors
        dx, dgate, dweight = torch.empty_like(x), torch.empty_like(gate), torch.zeros_like(weight)
        found = (dx, dgate, dweight)
        _call("gated_norm_gradient", x, gate, weight, grads[0].contiguous(), *found, x.numel() // DIM, ctx.eps)
        return *found, None


def conv_silu(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """x [rows, tokens, width], weight [width, 1, TAPS] of a causal convolution; returns fp32, the same shape as x."""
    found = _ConvSilu.apply(x.float().contiguous(), weight.squeeze(1).t().contiguous())
    assert isinstance(found, torch.Tensor)
    return found


def delta(mixed: torch.Tensor, g: torch.Tensor, beta: torch.Tensor) -> torch.Tensor:
    """mixed fp32 [rows, tokens, 3 * heads * DIM]: queries, keys, values, the first two not yet of length 1; g (log
    decays) and beta fp32 [rows, tokens, heads]. Returns fp32 [rows, tokens, heads, DIM]."""
    found = _Delta.apply(mixed.contiguous(), g.contiguous(), beta.contiguous())
    assert isinstance(found, torch.Tensor)
    return found


def gated_norm(x: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x and gate [..., DIM], weight fp32 [DIM]: RMS norm, times silu of the gate. Returns fp32 [..., DIM]."""
    found = _GatedNorm.apply(x.contiguous(), gate.float().contiguous(), weight, eps)
    assert isinstance(found, torch.Tensor)
    return found
