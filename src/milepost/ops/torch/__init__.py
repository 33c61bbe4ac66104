"""The plain torch reference of every op: clear, correct, always there. Kernels are compared with it."""

from milepost.ops.torch.activation import silu_mul
from milepost.ops.torch.attention import paged_attention, store_kv
from milepost.ops.torch.linear import linear
from milepost.ops.torch.norm import rms_norm
from milepost.ops.torch.rope import rotate_half

ROW_INDEPENDENT = frozenset({"rms_norm", "rotate_half", "store_kv"})
"""Ops here whose bits of a row do not depend on the other rows (a test holds them to it). Torch's matrix products and
attention choose their order of sums by the number of rows, and its silu treats the end of a buffer apart."""

__all__ = ["ROW_INDEPENDENT", "linear", "paged_attention", "rms_norm", "rotate_half", "silu_mul", "store_kv"]
