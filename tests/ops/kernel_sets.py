"""The kernels of one instruction set, as ops."""

from collections.abc import Callable

import torch

from milepost.ops import Ops, Target, bind
from milepost.ops.cpu import CpuBackend

OpsIn = Callable[[torch.dtype], Ops]


def kernel_ops(instruction_set: str, dtype: torch.dtype) -> Ops:
    """Bound for models of `dtype`; ops that have no kernel are torch's."""
    return bind(Target(torch.device("cpu"), dtype), [CpuBackend(instruction_set)])[0]
