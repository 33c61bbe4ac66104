"""Packed matrix products against float64, and their independence of rows, threads and tiles."""

import pytest
import torch
from kernel_sets import OpsIn

from milepost.ops import PackedWeight
from milepost.ops import torch as reference

DTYPES = [torch.float32, torch.bfloat16]
SIZES = [(0, 4, 3), (1, 1, 1), (1, 64, 64), (2, 33, 65), (5, 130, 70), (7, 511, 128), (13, 1025, 200), (97, 48, 130)]
"""Rows, inputs, outputs: one under and over the tiles' and blocks' edges."""


def drawn(num_rows: int, size_in: int, size_out: int, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(num_rows * 1000 + size_in)
    shapes = ((num_rows, size_in), (size_out, size_in), (size_out,))
    x, weight, bias = (torch.randn(shape, generator=generator) for shape in shapes)
    return x.to(dtype), weight.to(dtype), bias.to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("num_rows", "size_in", "size_out"), SIZES)
def test_against_float64(kernels: OpsIn, num_rows: int, size_in: int, size_out: int, dtype: torch.dtype) -> None:
    ops = kernels(dtype)
    x, weight, bias = drawn(num_rows, size_in, size_out, dtype)
    packed = ops.pack(weight)
    assert isinstance(packed, PackedWeight)
    assert packed.shape == weight.shape
    for added in (None, bias):
        out = ops.linear(x, packed, added)
        exact = reference.linear(x.double(), weight.double(), None if added is None else added.double())
        largest = reference.linear(x.double().abs(), weight.double().abs())  # what rounding is relative to
        step = 2**-8 if dtype == torch.bfloat16 else 2**-23
        assert (out.shape, out.dtype) == (exact.shape, dtype)
        assert ((out.double() - exact).abs() <= exact.abs() * step + largest * 2**-19).all()
        assert torch.equal(ops.linear(x, weight, added), out)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("num_rows", "size_in", "size_out"), SIZES)
def test_a_row_has_the_same_bits_alone_and_among_others_on_any_threads(
    kernels: OpsIn, num_rows: int, size_in: int, size_out: int, dtype: torch.dtype
) -> None:
    ops = kernels(dtype)
    x, weight, bias = drawn(num_rows, size_in, size_out, dtype)
    packed = ops.pack(weight)
    together, before = ops.linear(x, packed, bias), torch.get_num_threads()
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            assert torch.equal(ops.linear(x, packed, bias), together)
            for start in range(0, num_rows, 11):
                for count in (1, 2, 3, 5, 6, 7):
                    rows = slice(start, start + count)
                    assert torch.equal(ops.linear(x[rows], packed, bias), together[rows])
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_that_are_not_finite_stay_alone(kernels: OpsIn, dtype: torch.dtype) -> None:
    ops = kernels(dtype)
    x, weight, _ = drawn(9, 65, 70, dtype)
    sound = ops.linear(x, weight)
    x[2, 3], x[7, 64] = float("nan"), float("inf")
    out = ops.linear(x, weight)
    assert out[2].isnan().all()
    assert not out[7].isfinite().any()
    others = [0, 1, 3, 4, 5, 6, 8]
    assert torch.equal(out[others], sound[others])


@pytest.mark.parametrize("dtype", DTYPES)
def test_views_are_read_as_they_lie(kernels: OpsIn, dtype: torch.dtype) -> None:
    ops = kernels(dtype)
    x, weight, _ = drawn(8, 96, 70, dtype)
    for view in (x[::2], x[:, :48], x.T[:8, :8], x[:, 1:34]):
        part = weight[:, : view.shape[1]]
        assert torch.equal(ops.linear(view, part), ops.linear(view.clone(), part.clone()))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("vocab_size", "size"), [(1, 1), (70, 33), (200, 64)])
def test_an_embedding_reads_packed_rows(kernels: OpsIn, vocab_size: int, size: int, dtype: torch.dtype) -> None:
    ops = kernels(dtype)
    _, weight, _ = drawn(1, size, vocab_size, dtype)
    ids = torch.randint(0, vocab_size, (50,), generator=torch.Generator().manual_seed(0))
    for table in (weight, ops.pack(weight)):
        assert torch.equal(ops.embed(ids, table), weight[ids])
        assert ops.embed(ids[:0], table).shape == (0, size)
