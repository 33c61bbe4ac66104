"""Matrix products with weights packed once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from milepost.ops.cpu.kernels import Kernels
from milepost.ops.cpu.lasting import LastingMemory
from milepost.ops.packed import PackedWeight

PANEL = 64
"""Outputs that lie side by side: `csrc/gemm.h`."""
_WEIGHTS = LastingMemory()


def pack(lib: Kernels, weight: torch.Tensor) -> PackedWeight:
    """[out, in], or [count, out, in] for as many matrices of one size, in the order that `linear` reads, to be kept."""
    return _pack(lib, weight, _WEIGHTS.empty)


def packed_for_now(lib: Kernels, weight: torch.Tensor) -> PackedWeight:
    """The same, for one call."""
    return _pack(lib, weight, lambda shape, dtype: torch.empty(shape, dtype=dtype))


def _pack(
    lib: Kernels, weight: torch.Tensor, empty: Callable[[Sequence[int], torch.dtype], torch.Tensor]
) -> PackedWeight:
    size_out, size_in = weight.shape[-2:]
    matrices = weight.contiguous().view(-1, size_out, size_in)
    pairs = 2 if weight.dtype == torch.bfloat16 else 1
    panels, padded = -(-size_out // PANEL), -(-size_in // pairs) * pairs
    data = empty((*weight.shape[:-2], panels * PANEL, padded), weight.dtype)
    run = lib.typed("pack", weight.dtype)
    for matrix, to in zip(matrices, data.view(-1, panels * PANEL, padded), strict=True):
        run(matrix.data_ptr(), to.data_ptr(), size_in, size_out)
    return PackedWeight(data, size_out, size_in)


def linear(
    lib: Kernels, x: torch.Tensor, weight: torch.Tensor | PackedWeight, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """`ops.torch.linear`; a weight that is not packed is packed for this call."""
    packed = weight if isinstance(weight, PackedWeight) else packed_for_now(lib, weight)
    x = rows_of(x)
    out = lib.empty((x.shape[0], packed.size_out), x.dtype)
    run = lib.typed("linear", x.dtype)
    run(
        x.data_ptr(),
        x.stride(0),
        packed.data.data_ptr(),
        0 if bias is None else bias.data_ptr(),
        out.data_ptr(),
        x.shape[0],
        packed.size_in,
        packed.size_out,
    )
    return out


def rows_of(x: torch.Tensor) -> torch.Tensor:
    """x [rows, in] as the kernel reads it: values side by side, and in bf16 one 0 more where their number is odd."""
    if x.dtype == torch.bfloat16 and x.shape[1] % 2:
        return torch.nn.functional.pad(x, (0, 1))
    return x if x.stride(1) == 1 else x.contiguous()


def embed(lib: Kernels, token_ids: torch.Tensor, weight: torch.Tensor | PackedWeight) -> torch.Tensor:
    """`ops.torch.embed`, also of a weight that is packed since the head shares it."""
    if not isinstance(weight, PackedWeight):
        return weight[token_ids]
    ids = token_ids.contiguous()
    out = lib.empty((ids.shape[0], weight.size_in), weight.dtype)
    run = lib.typed("unpack_rows", weight.dtype)
    run(weight.data.data_ptr(), ids.data_ptr(), out.data_ptr(), ids.shape[0], weight.size_in)
    return out
