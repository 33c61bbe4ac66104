"""The kernels of one instruction set, as ops."""

from collections.abc import Callable, Sequence

import pytest
import torch

from milepost.ops import Ops, Target, bind
from milepost.ops.cpu import CpuBackend
from milepost.ops.cpu.kernels import Kernels

OpsIn = Callable[[torch.dtype], Ops]


def kernel_ops(instruction_set: str, dtype: torch.dtype) -> Ops:
    """Bound for models of `dtype`; ops that have no kernel are torch's."""
    return bind(Target(torch.device("cpu"), dtype), [CpuBackend(instruction_set)])[0]


def poison_results(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a kernel does not write stays NaN."""

    def full_of_nan(lib: Kernels, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        return torch.full(tuple(shape), torch.nan if dtype.is_floating_point else 77, dtype=dtype)

    monkeypatch.setattr(Kernels, "empty", full_of_nan)
    monkeypatch.setattr(Kernels, "dense_like", lambda lib, x: full_of_nan(lib, x.shape, x.dtype))
