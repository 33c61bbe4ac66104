"""The rotary kernels: angles against float64, turned heads bit for bit against the torch reference."""

import math

import pytest
import torch
from kernel_sets import OpsIn

from milepost.ops import torch as reference

DTYPES = [torch.float32, torch.bfloat16]
POSITIONS = [0, 1, 2, 63, 64, 1000, 4095, 131_071, 2**20 + 1]


def frequencies(size: int) -> torch.Tensor:
    return 1.0 / 10_000.0 ** (torch.arange(size).float() / max(size, 1))


@pytest.mark.parametrize("size", [1, 7, 16, 17, 64])
@pytest.mark.parametrize("factor", [1.0, 1.3862944])
def test_angles_are_fp32_products_and_their_cosines_are_rounded_once(kernels: OpsIn, size: int, factor: float) -> None:
    positions, inv_freq = torch.tensor(POSITIONS), frequencies(size)
    cos, sin = kernels(torch.float32).rope_angles(positions, inv_freq, factor)
    angles = (positions.float()[:, None] * inv_freq).tolist()
    for out, function in ((cos, math.cos), (sin, math.sin)):
        once = torch.tensor([[function(angle) for angle in row] for row in angles], dtype=torch.float32)
        assert torch.equal(out, once * factor)
    for out, expected in zip((cos, sin), reference.rope_angles(positions, inv_freq, factor), strict=True):
        torch.testing.assert_close(out, expected, rtol=0, atol=2e-7)


def test_angles_of_a_row_do_not_depend_on_the_others_or_on_threads(kernels: OpsIn) -> None:
    positions, inv_freq = torch.randint(0, 100_000, (137,), generator=torch.Generator().manual_seed(0)), frequencies(33)
    angles = kernels(torch.float32).rope_angles
    together = angles(positions, inv_freq, 1.0)
    alone = [angles(positions[i : i + 1], inv_freq, 1.0) for i in range(len(positions))]
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            again = angles(positions, inv_freq, 1.0)
            for i in range(2):
                assert torch.equal(again[i], together[i])
                assert torch.equal(torch.cat([one[i] for one in alone]), together[i])
    finally:
        torch.set_num_threads(before)
    assert angles(positions[:0], inv_freq, 1.0)[0].shape == (0, 33)
    assert all(map(torch.equal, angles(positions[::2], inv_freq, 1.0), (part[::2] for part in together)))


def heads(rows: int, num_heads: int, dim: int, half: int, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(rows + dim)
    angles = torch.rand(rows, half, generator=generator) * 6
    return torch.randn(rows, num_heads, dim, generator=generator).to(dtype), angles.cos(), angles.sin()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("rows", "num_heads", "dim", "half"),
    [(0, 2, 8, 4), (1, 1, 2, 1), (1, 9, 64, 32), (3, 2, 40, 20), (17, 3, 24, 5), (50, 2, 80, 16), (33, 1, 256, 128)],
)
def test_turned_heads_have_the_bits_of_the_reference(
    kernels: OpsIn, rows: int, num_heads: int, dim: int, half: int, dtype: torch.dtype
) -> None:
    x, cos, sin = heads(rows, num_heads, dim, half, dtype)
    expected = reference.rotate_half(x, cos, sin)
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            out = kernels(dtype).rotate_half(x, cos, sin)
            assert (out.dtype, out.shape) == (dtype, x.shape)
            assert torch.equal(out, expected)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", DTYPES)
def test_heads_in_wider_rows_and_values_that_are_not_finite(kernels: OpsIn, dtype: torch.dtype) -> None:
    wide, cos, sin = heads(20, 4, 48, 12, dtype)
    for view in (wide[..., :24], wide[..., 24:], wide[:, 1:3], wide[::2, :, :24], wide.transpose(1, 2)[..., :3]):
        angles = cos[: view.shape[0]], sin[: view.shape[0]]
        if view.shape[2] >= 24:
            assert torch.equal(kernels(dtype).rotate_half(view, *angles), reference.rotate_half(view, *angles))
    odd = wide.transpose(1, 2)[:, :24].transpose(1, 2)  # values of a head are not side by side in what follows
    odd = odd.transpose(0, 2).contiguous().transpose(0, 2)
    assert torch.equal(kernels(dtype).rotate_half(odd, cos, sin), reference.rotate_half(odd, cos, sin))
    wide[3, 1, 5], wide[7, 0, 40] = float("nan"), float("inf")
    out, expected = kernels(dtype).rotate_half(wide, cos, sin), reference.rotate_half(wide, cos, sin)
    assert torch.equal(out.isnan(), expected.isnan())
    assert torch.equal(out.nan_to_num(7.0), expected.nan_to_num(7.0))
    assert out[[0, 1, 2, 4, 5, 6, 8]].isfinite().all()
