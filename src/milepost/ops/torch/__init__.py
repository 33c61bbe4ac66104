"""The plain torch reference of every op: clear, correct, always there. Kernels are compared with it."""

from milepost.ops.torch.activation import silu_mul
from milepost.ops.torch.attention import paged_attention, store_kv
from milepost.ops.torch.linear import linear
from milepost.ops.torch.norm import rms_norm
from milepost.ops.torch.rope import rotate_half

__all__ = ["linear", "paged_attention", "rms_norm", "rotate_half", "silu_mul", "store_kv"]
