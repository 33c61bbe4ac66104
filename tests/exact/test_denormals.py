"""Denormal numbers count as 0 on every thread: else a row's bits would depend on who computes it."""

import platform

import pytest
import torch
from streams import threads

from milepost.ops import Target, bind
from milepost.ops.cpu import CpuBackend, library


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="the setting is x86's")
@pytest.mark.parametrize("instruction_set", library.available())
def test_denormal_products_are_0_on_every_thread(instruction_set: str) -> None:
    ops, _ = bind(Target(torch.device("cpu"), torch.float32), [CpuBackend(instruction_set)])
    torch.set_flush_denormal(False)  # whatever ran in this thread before
    x, weight = torch.full((200, 16), 1e-30), ops.pack(torch.full((640, 16), 1e-9))
    for num_threads in (1, 2, 5):
        with threads(num_threads):
            assert ops.linear(x, weight).count_nonzero() == 0, num_threads
    assert (torch.tensor([1e-30]) * 1e-9).item() > 0, "the setting is given back to the thread that called"
