"""Norms and elementwise functions of the torch reference against their formulas in float64."""

import math

import pytest
import torch

from milepost.ops import torch as reference

DTYPES = [torch.float32, torch.bfloat16]
ROUNDING = {torch.float32: 1e-6, torch.bfloat16: 2**-7}


def drawn(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return (torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))) * 3).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(0, 8), (1, 1), (5, 33), (3, 2, 16)])
def test_offset_rms_norm(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x, weight = drawn(*shape, dtype=dtype), drawn(shape[-1], dtype=dtype) / 10
    out = reference.offset_rms_norm(x, weight, 1e-5)
    wide = x.double()
    expected = wide / (wide.square().mean(-1, keepdim=True) + 1e-5).sqrt() * (1 + weight.double())
    assert (out.shape, out.dtype) == (x.shape, dtype)
    torch.testing.assert_close(out.double(), expected, rtol=ROUNDING[dtype], atol=1e-6)


def test_offset_rms_norm_keeps_weights_that_one_would_swallow() -> None:
    x = torch.full((1, 64), 100.0, dtype=torch.bfloat16)
    weight = torch.full((64,), 2**-9 * 1.5, dtype=torch.bfloat16)  # 1 + weight is 1 in bfloat16
    x[0, ::2] = 128.0
    plain, offset = (reference.offset_rms_norm(x, w, 0.0) for w in (torch.zeros_like(weight), weight))
    assert not torch.equal(plain, offset)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(0, 8), (1, 1), (7, 33)])
def test_gelu_tanh_mul(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    gate, up = drawn(*shape, dtype=dtype), drawn(*shape, dtype=dtype).flip(-1)
    g = gate.double()
    gelu = g / 2 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (g + 0.044715 * g**3)))
    out = reference.gelu_tanh_mul(gate, up)
    assert (out.shape, out.dtype) == (gate.shape, dtype)
    torch.testing.assert_close(out.double(), gelu * up.double(), rtol=2 * ROUNDING[dtype], atol=1e-5)


@pytest.mark.parametrize("cap", [0.5, 30.0])
def test_soft_cap(cap: float) -> None:
    x = torch.cat([drawn(5, 33).flatten(), torch.tensor([0.0, 1e4, -1e4, math.inf, -math.inf])])
    out = reference.soft_cap(x, cap)
    torch.testing.assert_close(out.double(), cap * torch.tanh(x.double() / cap), rtol=1e-6, atol=1e-6)
    assert out.abs().max() == cap
    strided = drawn(4, 6)
    assert torch.equal(reference.soft_cap(strided.T, cap), reference.soft_cap(strided.T.contiguous(), cap))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(0, 8), (1, 1), (7, 33)])
def test_silu_and_softplus(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = drawn(*shape, dtype=dtype)
    wide = x.double()
    for op, expected in ((reference.silu, wide / (1 + torch.exp(-wide))), (reference.softplus, wide.exp().log1p())):
        out = op(x)
        assert (out.shape, out.dtype) == (x.shape, dtype)
        torch.testing.assert_close(out.double(), expected, rtol=2 * ROUNDING[dtype], atol=1e-7)
        wider = torch.cat([x, x], -1)
        assert torch.equal(op(wider[:, : shape[-1]]), op(wider[:, : shape[-1]].contiguous()))


def test_softplus_far_out() -> None:
    x = torch.tensor([-80.0, -20.0, 0.0, 30.0, 1e4, math.inf, -math.inf])
    expected = torch.tensor([math.exp(-80), math.log1p(math.exp(-20)), math.log(2), 30.0, 1e4, math.inf, 0.0])
    torch.testing.assert_close(reference.softplus(x), expected, rtol=1e-6, atol=0)
