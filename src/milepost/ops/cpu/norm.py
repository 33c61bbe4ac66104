"""Norms of single rows."""

from __future__ import annotations

from types import ModuleType

import torch


def rms_norm(lib: ModuleType, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    x, weight = x.contiguous(), weight.contiguous()
    out = torch.empty_like(x)
    size = x.shape[-1]
    run = lib.rms_norm_f32 if x.dtype == torch.float32 else lib.rms_norm_bf16
    run(x.data_ptr(), weight.data_ptr(), out.data_ptr(), x.numel() // size, size, eps)
    return out
