"""The C++ kernels of `csrc/`, called with addresses: 2 us a call where array casting takes 50."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import torch

from milepost.ops.cpu import library
from milepost.ops.cpu.activation import (
    add,
    gelu_tanh_mul,
    mul,
    sigmoid,
    sigmoid_mul,
    silu,
    silu_mul,
    soft_cap,
    softplus,
    wide,
)
from milepost.ops.cpu.attention import paged_attention, store_kv
from milepost.ops.cpu.conv import causal_conv
from milepost.ops.cpu.kernels import Kernels
from milepost.ops.cpu.linear import embed, linear, pack
from milepost.ops.cpu.moe import moe_mlp, route
from milepost.ops.cpu.norm import gated_rms_norm, l2_norm, offset_rms_norm, rms_norm, scan_output
from milepost.ops.cpu.recurrence import gated_delta, mamba2
from milepost.ops.cpu.rope import rope_angles, rotate_half
from milepost.ops.cpu.scan import selective_scan

if TYPE_CHECKING:
    from milepost.ops.registry import Target

KERNELS: dict[str, Callable[..., object]] = {
    "pack": pack,
    "linear": linear,
    "embed": embed,
    "rms_norm": rms_norm,
    "offset_rms_norm": offset_rms_norm,
    "gated_rms_norm": gated_rms_norm,
    "l2_norm": l2_norm,
    "rope_angles": rope_angles,
    "rotate_half": rotate_half,
    "silu": silu,
    "silu_mul": silu_mul,
    "gelu_tanh_mul": gelu_tanh_mul,
    "sigmoid": sigmoid,
    "sigmoid_mul": sigmoid_mul,
    "soft_cap": soft_cap,
    "softplus": softplus,
    "wide": wide,
    "add": add,
    "mul": mul,
    "scan_output": scan_output,
    "store_kv": store_kv,
    "paged_attention": paged_attention,
    "causal_conv": causal_conv,
    "mamba2": mamba2,
    "gated_delta": gated_delta,
    "selective_scan": selective_scan,
    "route": route,
    "moe_mlp": moe_mlp,
}
"""Each takes the compiled kernels first, then the arguments of its namesake in `ops/torch`."""

DTYPES = (torch.float32, torch.bfloat16)


class CpuBackend:
    """Kernels of one instruction set. Without a compiler at install there are none, and each op says so."""

    ROW_INDEPENDENT = frozenset(KERNELS)

    def __init__(self, instruction_set: str | None = None) -> None:
        """None: as the environment says, or the best that this machine has."""
        self.instruction_set = instruction_set or library.chosen()
        module = library.module_of(self.instruction_set or "portable")
        self.kernels = module if isinstance(module, str) else Kernels(module)
        """What computes, or why there is nothing that does."""
        self.NAME = f"cpu {self.instruction_set}" if self.instruction_set else "cpu"

    def kernel(self, op: str, target: Target) -> Callable[..., object] | str:
        if isinstance(self.kernels, str):
            return self.kernels
        if target.device.type != "cpu":
            return f"runs on cpu, not {target.device.type}"
        if op not in KERNELS:
            return "no kernel yet"
        if target.dtype not in DTYPES:
            return f"no kernel for {str(target.dtype).removeprefix('torch.')}"
        return partial(KERNELS[op], self.kernels)

    def num_threads(self) -> int:
        """Threads that kernels use when this thread calls them: as many as torch was told; 0 without kernels."""
        return 0 if isinstance(self.kernels, str) else self.kernels.num_threads()
