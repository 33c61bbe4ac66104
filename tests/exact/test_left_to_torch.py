"""What a forward pass still leaves to torch: nothing but what gives a row the same bits in any batch.

Torch's sigmoid, silu, softplus and gelu compute the end of a buffer, of a thread's share and of strided memory by
another formula than the rest (measured with 2.13, AVX2 and AVX-512); its sums and matrix products choose their order by
the shape.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from exact_models import exact_model
from families import FAMILIES
from piecewise import Reader
from streams import threads
from torch.utils._python_dispatch import TorchDispatchMode

from milepost.ops.cpu import library

DTYPES = [pytest.param(torch.float32, id="fp32"), pytest.param(torch.bfloat16, id="bf16")]

Compute = Callable[[torch.Tensor], torch.Tensor]

ELEMENTWISE: Mapping[str, Compute] = {
    "add": lambda x: x + x * 0.5,
    "clamp": lambda x: x.clamp(-0.5, 1.5),
    "div": lambda x: x / 3.7,
    "mul": lambda x: x * torch.linspace(0.1, 2.0, x.shape[-1], dtype=x.dtype),
    "neg": lambda x: -x,
    "to": lambda x: x.to(torch.bfloat16 if x.dtype == torch.float32 else torch.float32),
}
"""Torch's operations on single values, each rounded once, however it is computed."""

MOVES = frozenset(
    {
        "alias",
        "cat",
        "chunk",
        "contiguous",
        "copy_",
        "detach_",
        "empty",
        "empty_like",
        "flatten",
        "full",
        "gather",
        "index",
        "lift_fresh",
        "ones",
        "pad",
        "repeat_interleave",
        "reshape",
        "select",
        "slice",
        "split",
        "split_with_sizes",
        "squeeze",
        "unbind",
        "unsqueeze",
        "view",
        "zeros",
    }
)
"""Those that move values, or make room for them, and compute nothing."""


class Listed(TorchDispatchMode):
    """The names of the operations that touch floats."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        if any(isinstance(x, torch.Tensor) and x.is_floating_point() for x in (*args, made)):
            self.names.add(func.overloadpacket.__name__)
        return made


@pytest.mark.skipif(not library.available(), reason="without kernels all ops run in torch")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_forward_pass_leaves_only_these_to_torch(family: str, dtype: torch.dtype) -> None:
    reader = Reader(exact_model(family, dtype, library.available()[0]))
    with Listed() as listed:
        reader.read({"a": list(range(70)), "b": [3]})
        reader.read({"a": [1], "b": [4, 5]})
    assert sorted(listed.names - MOVES - set(ELEMENTWISE)) == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ELEMENTWISE)
def test_these_give_a_row_the_same_bits_in_any_batch_and_memory(name: str, dtype: torch.dtype) -> None:
    for rows, columns in ((7, 48), (5, 577), (2, 70_001)):
        assert same_in_any_batch_and_memory(ELEMENTWISE[name], rows, columns, dtype)


@pytest.mark.skipif(torch.backends.cpu.get_cpu_capability() not in ("AVX2", "AVX512"), reason="another torch")
def test_others_do_not() -> None:
    """What this test would not let pass: torch's own silu, which is why there is a kernel for it."""
    assert not same_in_any_batch_and_memory(torch.nn.functional.silu, 5, 577, torch.float32)


def same_in_any_batch_and_memory(compute: Compute, rows: int, columns: int, dtype: torch.dtype) -> bool:
    x = (torch.randn(rows, columns, generator=torch.Generator().manual_seed(0)) * 3).to(dtype)
    with threads(1):
        expected = compute(x)
    apart = torch.empty(rows, 2 * columns + 3, dtype=dtype)
    beside, strided, shifted = (
        apart[:, 1 : columns + 1],
        torch.empty(rows, 2 * columns, dtype=dtype)[:, ::2],
        apart.view(-1)[3 : 3 + rows * columns].view(rows, columns),
    )
    same = torch.equal(torch.cat([compute(row[None].clone()) for row in x]), expected)
    for place in (beside, strided, shifted, torch.empty(columns, rows, dtype=dtype).T):
        place.copy_(x)
        same &= torch.equal(compute(place), expected)
    for num_threads in (2, 3, 5):
        with threads(num_threads):
            same &= torch.equal(compute(x), expected)
    return same
