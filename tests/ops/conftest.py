"""The kernels of each instruction set that is built and that this machine has."""

from functools import partial

import pytest
from kernel_sets import OpsIn, kernel_ops

from milepost.ops.cpu import library


@pytest.fixture(params=library.INSTRUCTION_SETS)
def kernels(request: pytest.FixtureRequest) -> OpsIn:
    """The ops of one instruction set, for a dtype."""
    if request.param not in library.available():
        pytest.skip(f"{request.param} is not built, or this machine does not have it")
    return partial(kernel_ops, request.param)
