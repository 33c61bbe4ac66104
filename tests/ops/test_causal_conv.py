"""The convolution's own promises: its bits, its dtypes, its edge cases."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from recurrent_ops import Conv, Pool, error, one_thread


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    with one_thread():
        yield


def outputs(case: Conv, size: int, length: int = 200) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    pool = Pool(case, generator)
    running, other = (pool.start(case.draw(length, generator)) for _ in range(2))
    while running.left:
        piece = min(size, running.left)
        pool.step([(other, piece), (running, piece)] if size % 2 else [(running, piece)])
    return torch.cat(running.out), running.truth


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("channels", [1, 5, 96, 331])
def test_bits_do_not_depend_on_pieces_or_neighbours(channels: int, dtype: torch.dtype) -> None:
    case = Conv(channels, dtype=dtype)
    whole, _ = outputs(case, 200)
    for size in (1, 2, 17, 64, 65):
        assert torch.equal(outputs(case, size)[0], whole)


@pytest.mark.parametrize("taps", [1, 2, 3, 4, 64])
@pytest.mark.parametrize("bias", [False, True])
def test_any_number_of_taps(taps: int, bias: bool) -> None:
    for size in (1, 70, 200):
        assert error(*outputs(Conv(taps=taps, bias=bias), size)) <= 1e-5


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_inputs_are_summed_wide_and_rounded_once(dtype: torch.dtype) -> None:
    out, truth = outputs(Conv(channels=64, dtype=dtype), 33)
    assert out.dtype == dtype
    # half a step of the dtype, and a little for fp32 sums that fall on the other side of a tie
    off = (out.double() - truth).abs() / truth.abs().clamp(min=1e-3)
    assert float(off.max()) <= torch.finfo(dtype).eps / 2 * 1.01
