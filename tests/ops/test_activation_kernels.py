"""The elementwise kernels against the torch reference and float64, independent of place, rows and threads."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from kernel_sets import OpsIn, poison_results

from milepost.ops import Ops
from milepost.ops import torch as reference

DTYPES = [torch.float32, torch.bfloat16]
TASK_VALUES = 8192
SHAPES = [(0, 8), (4, 0), (1, 1), (1, 15), (3, 16), (7, 17), (5, 2, 33), (3, TASK_VALUES + 5)]
CAP = 30.0
FACTOR = 0.22  # not a number of fp32, or bf16

UNARY: dict[str, Callable[[Ops, torch.Tensor], torch.Tensor]] = {
    "silu": lambda ops, x: ops.silu(x),
    "sigmoid": lambda ops, x: ops.sigmoid(x),
    "softplus": lambda ops, x: ops.softplus(x),
    "soft_cap": lambda ops, x: ops.soft_cap(x, CAP),
}
BINARY: dict[str, Callable[[Ops, torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "silu_mul": lambda ops, x, y: ops.silu_mul(x, y),
    "gelu_tanh_mul": lambda ops, x, y: ops.gelu_tanh_mul(x, y),
    "sigmoid_mul": lambda ops, x, y: ops.sigmoid_mul(x, y),
    "sigmoid_mul, a gate for each row": lambda ops, x, y: ops.sigmoid_mul(x[..., :1], y),
    "add": lambda ops, x, y: ops.add(x, y),
    "add, a factor": lambda ops, x, y: ops.add(x, y, FACTOR),
    "mul": lambda ops, x, y: ops.mul(x, y),
    "mul, a value for each row": lambda ops, x, y: ops.mul(x[..., :1], y),
}
EACH_UNARY = pytest.mark.parametrize("run", UNARY.values(), ids=UNARY.keys())
EACH_BINARY = pytest.mark.parametrize("run", BINARY.values(), ids=BINARY.keys())
EACH_DTYPE = pytest.mark.parametrize("dtype", DTYPES)

TRUTH: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": lambda x: x / (1 + (-x).exp()),
    "sigmoid": lambda x: 1 / (1 + (-x).exp()),
    "softplus": lambda x: x.clamp(min=0) + (-x.abs()).exp().log1p(),
    "soft_cap": lambda x: CAP * torch.tanh(x / CAP),
}


@pytest.fixture(autouse=True)
def _poisoned_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    poison_results(monkeypatch)


def drawn(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    return (torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 3).to(dtype)


def close(out: torch.Tensor, expected: torch.Tensor, atol: float = 1e-7) -> None:
    """Within a few units of fp32, or one step of bf16 where these turn a rounding."""
    assert (out.shape, out.dtype) == (expected.shape, expected.dtype)
    assert out.is_contiguous()
    torch.testing.assert_close(out, expected, rtol=1e-6 if out.dtype == torch.float32 else 2**-7, atol=atol)


@EACH_DTYPE
@pytest.mark.parametrize("shape", SHAPES)
def test_against_the_reference(kernels: OpsIn, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x, y = drawn(shape, dtype, 0), drawn(shape, dtype, 1)
    for run in UNARY.values():
        close(run(kernels(dtype), x), run(reference, x))  # type: ignore[arg-type]
    for name, pair in BINARY.items():
        # torch's gelu adds 1 to a tanh that may be almost -1: its error is absolute
        atol = 3e-6 if "gelu" in name else 1e-7
        close(pair(kernels(dtype), x, y), pair(reference, x, y), atol)  # type: ignore[arg-type]


@EACH_DTYPE
@pytest.mark.parametrize("shape", SHAPES)
def test_wide_is_the_same_value_in_fp32(kernels: OpsIn, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = drawn((*shape[:-1], shape[-1] + 3), dtype, 0)
    x.view(-1)[:2] = torch.tensor([torch.inf, -0.0])[: x.numel()]
    for values in (x, x[..., 1:-2]):
        out = kernels(dtype).wide(values)
        assert out.dtype == torch.float32
        assert torch.equal(out.view(torch.int32), values.float().view(torch.int32))


def test_the_tensors_dtype_counts_not_the_models(kernels: OpsIn) -> None:
    x, y = drawn((3, 20), torch.float32, 0), drawn((3, 20), torch.float32, 1)
    ops = kernels(torch.bfloat16)
    assert torch.equal(ops.silu(x), kernels(torch.float32).silu(x))
    assert ops.silu(x).dtype == torch.float32
    mixed = ops.sigmoid_mul(x, y.bfloat16())
    close(mixed, reference.sigmoid_mul(x, y.bfloat16()))
    close(ops.sigmoid_mul(x.bfloat16(), y), reference.sigmoid_mul(x.bfloat16(), y))


@pytest.mark.parametrize("name", UNARY)
def test_within_a_few_units_of_the_truth_over_the_whole_range(kernels: OpsIn, name: str) -> None:
    far = torch.logspace(-30, 30, 20_001)
    x = torch.cat([torch.linspace(-86, 86, 100_001), torch.linspace(-2, 2, 50_001), far, -far])
    out, truth = UNARY[name](kernels(torch.float32), x).double(), TRUTH[name](x.double())
    normal = truth.abs() >= torch.finfo(torch.float32).tiny  # smaller ones may be 0
    if name == "silu":
        normal &= x > -88  # exp(-x) is infinite below, here as in torch: -0 for what is smaller than 1e-36
    unit = 2.0 ** (truth.abs().log2().floor() - 23)
    assert float(((out - truth).abs() / unit)[normal].max()) <= (4 if name == "silu" else 3)
    assert bool((out[~normal].abs() <= 1e-35).all())


def test_gelu_against_float64(kernels: OpsIn) -> None:
    x = torch.linspace(-12, 12, 100_001)
    wide = x.double()
    truth = wide * torch.sigmoid(2 * math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3))
    out = kernels(torch.float32).gelu_tanh_mul(x, torch.ones_like(x))
    torch.testing.assert_close(out.double(), truth, rtol=3e-5, atol=1e-37)
    near = x.abs() < 3
    torch.testing.assert_close(out[near].double(), truth[near], rtol=2e-6, atol=0)


@EACH_DTYPE
def test_limits(kernels: OpsIn, dtype: torch.dtype) -> None:
    inf, ops = math.inf, kernels(dtype)
    x = torch.tensor([inf, -inf, 3e38, -3e38, 1e4, -1e4, 0.0, -0.0] * 3, dtype=dtype)
    big = float(torch.tensor(3e38).to(dtype))
    ten_thousand = float(torch.tensor(1e4).to(dtype))
    expected = {
        "sigmoid": [1, 0, 1, 0, 1, 0, 0.5, 0.5],
        "softplus": [inf, 0, big, 0, ten_thousand, 0, *[float(torch.tensor(math.log(2)).to(dtype))] * 2],
        "soft_cap": [CAP, -CAP, CAP, -CAP, CAP, -CAP, 0, 0],
        "silu": [inf, math.nan, big, 0, ten_thousand, 0, 0, 0],  # torch's silu of -infinity is NaN, too
    }
    for name, values in expected.items():
        wanted = torch.tensor(values * 3, dtype=dtype)
        torch.testing.assert_close(UNARY[name](ops, x), wanted, rtol=0, atol=0, equal_nan=True, msg=name)
    gelu = ops.gelu_tanh_mul(x, torch.ones_like(x))
    wanted = torch.tensor([inf, math.nan, big, 0, ten_thousand, 0, 0, 0] * 3, dtype=dtype)
    torch.testing.assert_close(gelu, wanted, rtol=0, atol=0, equal_nan=True)
    assert ops.soft_cap(x, CAP)[7].signbit()


@EACH_DTYPE
def test_values_that_are_not_numbers_stay_where_they_are(kernels: OpsIn, dtype: torch.dtype) -> None:
    x, y = drawn((5, 37), dtype, 0), drawn((5, 37), dtype, 1)
    bad = torch.zeros(5, 37, dtype=torch.bool)
    bad[1, 3] = bad[2, 36] = bad[4, 0] = True
    x[bad] = torch.nan
    for run in UNARY.values():
        assert torch.equal(run(kernels(dtype), x).isnan(), bad)
    for name, pair in BINARY.items():
        rows = bad[:, :1].expand(5, 37) if "row" in name else bad
        assert torch.equal(pair(kernels(dtype), x, y).isnan(), rows)
        assert torch.equal(pair(kernels(dtype), y, x).isnan(), bad)


def every_half() -> torch.Tensor:
    """All finite bf16 values."""
    x = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    return x[x.isfinite()]


@pytest.mark.parametrize("name", [*UNARY, *BINARY])
def test_bf16_rounds_where_the_reference_does(kernels: OpsIn, name: str) -> None:
    """Over all values: an fp32 result that lies next to a tie may round the other way, by one step, which is rare."""
    x, ops = every_half(), kernels(torch.bfloat16)
    if name in UNARY:
        out, expected = UNARY[name](ops, x), UNARY[name](reference, x)  # type: ignore[arg-type]
    else:
        y = x[torch.randperm(x.numel(), generator=torch.Generator().manual_seed(0))]
        y = torch.where((y.abs() < 1e3) & (y.abs() > 1e-3), y, 0.7)
        out, expected = BINARY[name](ops, x[:, None], y[:, None]), BINARY[name](reference, x[:, None], y[:, None])  # type: ignore[arg-type]
        out, expected = out[:, 0], expected[:, 0]
    # below 1e-6 gelu's own 1 + tanh(u) loses its digits in the reference
    counted = (expected.abs() >= 1e-6 if "gelu" in name else expected.abs() >= 1e-35) & expected.isfinite()
    other = (out != expected) & counted
    assert int(other.sum()) <= (60 if "gelu" in name else 12)
    torch.testing.assert_close(out[other], expected[other], rtol=2**-7 if "gelu" not in name else 2**-6, atol=0)
    assert torch.equal(out.isfinite(), expected.isfinite())


@EACH_DTYPE
def test_products_meet_rounded_activations(kernels: OpsIn, dtype: torch.dtype) -> None:
    gate, up, ops = drawn((33, 65), dtype, 2), drawn((33, 65), dtype, 3), kernels(dtype)
    one = torch.ones_like(gate)
    assert torch.equal(ops.silu_mul(gate, up), ops.silu(gate) * up)
    assert torch.equal(ops.silu_mul(gate, one), ops.silu(gate))
    assert torch.equal(ops.gelu_tanh_mul(gate, up), ops.gelu_tanh_mul(gate, one) * up)
    # a gate for each value is rounded with the product, once
    assert torch.equal(ops.sigmoid_mul(gate, up), (ops.sigmoid(gate.float()) * up.float()).to(dtype))


@EACH_DTYPE
@pytest.mark.parametrize("shape", SHAPES)
def test_sums_and_products_have_the_bits_of_the_reference(
    kernels: OpsIn, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    """Each is rounded once from its true value, which leaves no choice."""
    x, y, ops = drawn(shape, dtype, 9), drawn(shape, dtype, 10), kernels(dtype)
    factors = {factor: torch.tensor(factor).double() for factor in (1.0, -1.0, 0.22, 3e-3, 128.0)}
    for factor, wide in factors.items():
        assert torch.equal(ops.add(x, y, factor), reference.add(x, y, factor))
        product = (y.double() * wide).to(dtype)
        assert torch.equal(ops.add(x, y, factor), (x.double() + product.double()).to(dtype))
    assert torch.equal(ops.add(x, y), reference.add(x, y))
    for left in (x, x[..., :1]):
        assert torch.equal(ops.mul(left, y), reference.mul(left, y))
        assert torch.equal(ops.mul(left, y), (left.double() * y.double()).to(dtype))


@EACH_DTYPE
def test_sums_and_products_that_are_large_or_small(kernels: OpsIn, dtype: torch.dtype) -> None:
    inf, nan, ops = math.inf, math.nan, kernels(dtype)
    x = torch.tensor([inf, -inf, inf, 3e38, -3e38, 1e-30, 0.0, -0.0] * 3, dtype=dtype)
    y = torch.tensor([inf, inf, 0.0, 3e38, 3e38, 1e-30, -1.0, -0.0] * 3, dtype=dtype)
    for found, expected in ((ops.add(x, y), [inf, nan, inf, inf, 0]), (ops.mul(x, y), [inf, -inf, nan, inf, -inf])):
        wanted = torch.tensor(expected, dtype=dtype)
        torch.testing.assert_close(found[:5], wanted, rtol=0, atol=0, equal_nan=True)
    for found, wanted in ((ops.add(x, y), reference.add(x, y)), (ops.mul(x, y), reference.mul(x, y))):
        torch.testing.assert_close(found, wanted, rtol=0, atol=0, equal_nan=True)
        assert torch.equal(found[5:8].signbit(), wanted[5:8].signbit())


@EACH_DTYPE
@EACH_UNARY
def test_a_value_has_the_same_bits_in_every_place(
    kernels: OpsIn, run: Callable[[Ops, torch.Tensor], torch.Tensor], dtype: torch.dtype
) -> None:
    x, ops = drawn((71,), dtype, 4), kernels(dtype)
    together = run(ops, x)
    assert torch.equal(torch.cat([run(ops, value[None]) for value in x]), together)
    for start in range(1, 20):
        assert torch.equal(run(ops, x[start:]), together[start:])
        assert torch.equal(run(ops, x[:-start]), together[:-start])
    assert torch.equal(run(ops, x.expand(3, 71).contiguous()), together.expand(3, 71))


@EACH_DTYPE
@EACH_BINARY
def test_a_row_has_the_same_bits_alone_in_views_and_on_any_threads(
    kernels: OpsIn, run: Callable[[Ops, torch.Tensor, torch.Tensor], torch.Tensor], dtype: torch.dtype
) -> None:
    ops = kernels(dtype)
    x, y = drawn((37, 577), dtype, 5), drawn((37, 577), dtype, 6)
    together = run(ops, x, y)
    assert torch.equal(torch.cat([run(ops, a[None], b[None]) for a, b in zip(x, y, strict=True)]), together)
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            assert torch.equal(run(ops, x, y), together)
    finally:
        torch.set_num_threads(before)


def views(x: torch.Tensor) -> list[torch.Tensor]:
    """Tensors [6, 4, 10] with x's values, that lie in memory in other ways; NaN around them."""
    wide = torch.full((6, 9, 23), torch.nan, dtype=x.dtype)
    wide[:, 3:7, 5:15] = x
    by_head = torch.full((6, 4, 20), torch.nan, dtype=x.dtype)
    by_head[..., 10:] = x
    return [wide[:, 3:7, 5:15], by_head.chunk(2, -1)[1], x.transpose(0, 2).contiguous().transpose(0, 2)]


@EACH_DTYPE
def test_views_are_read_in_place(kernels: OpsIn, dtype: torch.dtype) -> None:
    ops, x, y = kernels(dtype), drawn((6, 4, 10), dtype, 7), drawn((6, 4, 10), dtype, 8)
    for other in (*views(x), x[:, :1].expand(6, 4, 10)):
        for run in UNARY.values():
            assert torch.equal(run(ops, other), run(ops, other.clone(memory_format=torch.contiguous_format)))
    for left in (x, *views(x)):
        for right in (y, *views(y)):
            for pair in BINARY.values():
                out = pair(ops, left, right)
                assert out.is_contiguous()
                assert torch.equal(out, pair(ops, x, y))
    rows = torch.cat([x.flatten(1), y.flatten(1)], -1)
    assert torch.equal(ops.silu_mul(*rows.chunk(2, -1)), ops.silu_mul(x, y).flatten(1))


def test_shapes_that_do_not_fit_are_refused(kernels: OpsIn) -> None:
    ops, x = kernels(torch.float32), torch.ones(4, 6)
    for other in (torch.ones(4, 5), torch.ones(4, 6, dtype=torch.bfloat16)):
        for run in (ops.silu_mul, ops.add, ops.mul):
            with pytest.raises(AssertionError):
                run(x, other)
    for rows in (torch.ones(3, 1), torch.ones(4), torch.ones(4, 1, dtype=torch.bfloat16)):
        with pytest.raises(AssertionError):
            ops.mul(rows, x)
    with pytest.raises(AssertionError):
        ops.sigmoid_mul(torch.ones(3, 1), x)
