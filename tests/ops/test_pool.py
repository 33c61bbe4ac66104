"""Threads of the kernels: whoever calls, whenever, and with however many."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest
import torch
from kernel_sets import kernel_ops

from milepost.ops import Ops
from milepost.ops.cpu import library

pytestmark = pytest.mark.skipif(not library.available(), reason="without kernels torch computes")
ROWS = 130


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def ops() -> Ops:
    return kernel_ops(library.available()[0], torch.float32)


def product(ops: Ops, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    x, w = torch.randn(ROWS, 40, generator=generator), torch.randn(200, 40, generator=generator)
    return ops.linear(x, w)


@pytest.mark.usefixtures("threads")
def test_any_number_of_threads_gives_the_same(ops: Ops) -> None:
    torch.set_num_threads(1)
    right = [product(ops, seed) for seed in range(20)]
    for count in (4, 2, 7, 1, 3):
        torch.set_num_threads(count)
        assert all(torch.equal(product(ops, seed), right[seed]) for seed in range(20))


@pytest.mark.usefixtures("threads")
def test_callers_at_the_same_time_do_not_meet(ops: Ops) -> None:
    torch.set_num_threads(1)
    right = [product(ops, seed) for seed in range(8)]
    wrong: list[int] = []

    def call(seed: int) -> None:
        torch.set_num_threads(3)
        wrong.extend(seed for _ in range(60) if not torch.equal(product(ops, seed), right[seed]))

    callers = [threading.Thread(target=call, args=(seed,)) for seed in range(8)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(60)
        assert not caller.is_alive()
    assert not wrong


@pytest.mark.usefixtures("threads")
def test_threads_that_sleep_are_woken_and_nobody_waits_for_them(ops: Ops) -> None:
    torch.set_num_threads(3)
    right = product(ops, 0)
    for _ in range(20):
        threading.Event().wait(0.004)  # longer than they look for work
        assert torch.equal(product(ops, 0), right)


@pytest.mark.usefixtures("threads")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_has_no_threads_and_computes_alone(ops: Ops) -> None:
    torch.set_num_threads(2)
    right = product(ops, 1)
    child = os.fork()
    if not child:
        os._exit(0 if torch.equal(product(ops, 1), right) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
