"""The plain torch reference of every op: clear, correct, always there. Kernels are compared with it."""

from milepost.ops.torch.activation import (
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
from milepost.ops.torch.attention import paged_attention, store_kv
from milepost.ops.torch.conv import causal_conv
from milepost.ops.torch.gated_delta import gated_delta
from milepost.ops.torch.linear import embed, linear, pack
from milepost.ops.torch.mamba2 import mamba2
from milepost.ops.torch.moe import moe_mlp, route
from milepost.ops.torch.norm import gated_rms_norm, l2_norm, offset_rms_norm, rms_norm, scan_output
from milepost.ops.torch.rope import rope_angles, rotate_half
from milepost.ops.torch.selective_scan import selective_scan

ROW_INDEPENDENT = frozenset(
    {"add", "embed", "mul", "offset_rms_norm", "pack", "rms_norm", "rotate_half", "soft_cap", "store_kv", "wide"}
)
"""Ops here whose bits of a row do not depend on how its sequence is cut into pieces or on what shares the batch (tests
hold them to it). Torch's matrix products and attention choose their order of sums by the number of rows, and its silu,
exp, cos and sin may treat the end of a buffer apart."""

__all__ = [
    "ROW_INDEPENDENT",
    "add",
    "causal_conv",
    "embed",
    "gated_delta",
    "gated_rms_norm",
    "gelu_tanh_mul",
    "l2_norm",
    "linear",
    "mamba2",
    "moe_mlp",
    "mul",
    "offset_rms_norm",
    "pack",
    "paged_attention",
    "rms_norm",
    "rope_angles",
    "rotate_half",
    "route",
    "scan_output",
    "selective_scan",
    "sigmoid",
    "sigmoid_mul",
    "silu",
    "silu_mul",
    "soft_cap",
    "softplus",
    "wide",
    "store_kv",
]
