"""The norm kernels against the torch reference, and their independence of rows and threads."""

import pytest
import torch
from kernel_sets import OpsIn

from milepost.ops import torch as reference

DTYPES = [torch.float32, torch.bfloat16]


def rows(num_rows: int, size: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(num_rows * 1000 + size)
    x = torch.randn(num_rows, size, generator=generator) * 3
    return x.to(dtype), torch.randn(size, generator=generator).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("num_rows", "size"), [(0, 8), (1, 1), (1, 15), (3, 16), (7, 17), (5, 576), (64, 1000)])
def test_against_the_reference(kernels: OpsIn, num_rows: int, size: int, dtype: torch.dtype) -> None:
    x, weight = rows(num_rows, size, dtype)
    out, expected = kernels(dtype).rms_norm(x, weight, 1e-5), reference.rms_norm(x, weight, 1e-5)
    assert (out.shape, out.dtype) == (expected.shape, dtype)
    # a sum in another order may round the normalised value the other way: one step of its dtype
    torch.testing.assert_close(out, expected, rtol=1e-6 if dtype == torch.float32 else 2**-7, atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_has_the_same_bits_alone_and_among_others_on_any_threads(kernels: OpsIn, dtype: torch.dtype) -> None:
    x, weight = rows(37, 577, dtype)
    together = kernels(dtype).rms_norm(x, weight, 1e-5)
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            alone = torch.cat([kernels(dtype).rms_norm(row[None], weight, 1e-5) for row in x])
            assert torch.equal(alone, together)
            assert torch.equal(kernels(dtype).rms_norm(x, weight, 1e-5), together)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", DTYPES)
def test_strided_input_and_values_that_are_not_finite(kernels: OpsIn, dtype: torch.dtype) -> None:
    x, weight = rows(6, 64, dtype)
    assert torch.equal(
        kernels(dtype).rms_norm(x[::2], weight, 1e-5), kernels(dtype).rms_norm(x[::2].clone(), weight, 1e-5)
    )
    x[1, 3], x[4, 5] = float("nan"), float("inf")
    out = kernels(dtype).rms_norm(x, weight, 1e-5)
    assert out[1].isnan().all()
    assert out[4, 5].isnan()
    assert out[[0, 2, 3, 5]].isfinite().all()
