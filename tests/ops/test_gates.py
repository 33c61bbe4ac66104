"""Gates and the norms beside them, of the torch reference, against their formulas in float64."""

import math

import pytest
import torch

from milepost.ops import torch as reference

DTYPES = [torch.float32, torch.bfloat16]
ROUNDING = {torch.float32: 1e-6, torch.bfloat16: 2**-8}
SHAPES = [(0, 8), (1, 1), (7, 33), (3, 2, 16)]


def drawn(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return (torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 3).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_sigmoid(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = drawn(*shape, dtype=dtype)
    out = reference.sigmoid(x)
    assert (out.shape, out.dtype) == (x.shape, dtype)
    torch.testing.assert_close(out.double(), 1 / (1 + (-x.double()).exp()), rtol=ROUNDING[dtype], atol=0)
    assert torch.equal(reference.sigmoid(x.transpose(0, 1)), reference.sigmoid(x.transpose(0, 1).contiguous()))


def test_sigmoid_far_out() -> None:
    x = torch.tensor([-80.0, 0.0, 80.0, math.inf, -math.inf])
    torch.testing.assert_close(
        reference.sigmoid(x), torch.tensor([math.exp(-80), 0.5, 1.0, 1.0, 0.0]), rtol=1e-6, atol=0
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("one_gate", [True, False])
def test_sigmoid_mul_rounds_once(shape: tuple[int, ...], dtype: torch.dtype, one_gate: bool) -> None:
    x, gate = drawn(*shape, dtype=dtype), drawn(*shape[:-1], 1 if one_gate else shape[-1], dtype=dtype, seed=1)
    out = reference.sigmoid_mul(gate, x)
    assert (out.shape, out.dtype) == (x.shape, dtype)
    torch.testing.assert_close(out.double(), gate.double().sigmoid() * x.double(), rtol=ROUNDING[dtype], atol=0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_gated_rms_norm(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x, gate, weight = drawn(*shape), drawn(*shape, dtype=dtype, seed=1), drawn(shape[-1], dtype=dtype, seed=2)
    out = reference.gated_rms_norm(x, gate, weight, 1e-5)
    assert (out.shape, out.dtype) == (x.shape, dtype)
    wide, g = x.double(), gate.double()
    normed = wide / (wide.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()
    torch.testing.assert_close(out.double(), normed * g * g.sigmoid(), rtol=2 * ROUNDING[dtype], atol=1e-12)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_l2_norm(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = drawn(*shape, dtype=dtype)
    out = reference.l2_norm(x, 1e-6)
    assert (out.shape, out.dtype) == (x.shape, dtype)
    wide = x.double()
    expected = wide / (wide.square().sum(-1, keepdim=True) + 1e-6).sqrt()
    torch.testing.assert_close(out.double(), expected, rtol=ROUNDING[dtype], atol=0)


def test_zeros_stay_zeros() -> None:
    zeros, weight = torch.zeros(2, 8), torch.ones(8)
    assert torch.equal(reference.l2_norm(zeros, 1e-6), zeros)
    assert torch.equal(reference.gated_rms_norm(zeros, torch.ones(2, 8), weight, 1e-6), zeros)
