"""The C++ kernels of `csrc/`, called with addresses: 2 us a call where array casting takes 50."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch  # before the extension, which then shares its OpenMP runtime: one thread pool in the process

try:
    from milepost import _kernels
except ImportError as error:
    _kernels = None  # type: ignore[assignment]
    _MISSING = "not built: no C++ compiler was found at install" if "_kernels" in str(error) else str(error)

if TYPE_CHECKING:
    from milepost.ops.registry import Target


class CpuBackend:
    """Kernels of this build. Without a compiler at install there are none, and each op says so."""

    NAME = "cpu"
    ROW_INDEPENDENT = frozenset({"rms_norm"})

    def kernel(self, op: str, target: Target) -> Callable[..., object] | str:
        if _kernels is None:
            return _MISSING
        if target.device.type != "cpu":
            return f"runs on cpu, not {target.device.type}"
        if op not in KERNELS:
            return "no kernel yet"
        if target.dtype not in (torch.float32, torch.bfloat16):
            return f"no kernel for {target.dtype}"
        return KERNELS[op]


def num_threads() -> int:
    """Threads of the kernels' OpenMP pool, which is torch's; 0 without kernels."""
    return _kernels.num_threads() if _kernels is not None else 0


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """`ops.torch.rms_norm` with each row summed in one fixed order, whatever the number of rows or threads."""
    x, weight = x.contiguous(), weight.contiguous()
    out = torch.empty_like(x)
    size = x.shape[-1]
    run = _kernels.rms_norm_f32 if x.dtype == torch.float32 else _kernels.rms_norm_bf16
    run(x.data_ptr(), weight.data_ptr(), out.data_ptr(), x.numel() // size, size, eps)
    return out


KERNELS: dict[str, Callable[..., object]] = {"rms_norm": rms_norm}
BACKEND = CpuBackend()
