"""The norm kernels against the torch reference, and their independence of rows and threads."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from kernel_sets import OpsIn, poison_results

from milepost.ops import Ops
from milepost.ops import torch as reference

DTYPES = [torch.float32, torch.bfloat16]
SHAPES = [(0, 8), (4, 0), (1, 1), (1, 15), (3, 16), (7, 17), (5, 576), (64, 1000), (6, 3, 40)]
EPS = 1e-5
Norm = Callable[[Ops, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def gated(ops: Ops, x: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return ops.gated_rms_norm(x.float(), gate, weight, EPS)


NORMS: dict[str, Norm] = {
    "rms_norm": lambda ops, x, _, weight: ops.rms_norm(x, weight, EPS),
    "offset_rms_norm": lambda ops, x, _, weight: ops.offset_rms_norm(x, weight, EPS),
    "l2_norm": lambda ops, x, *_: ops.l2_norm(x, EPS),
    "l2_norm, a factor": lambda ops, x, *_: ops.l2_norm(x, EPS, 0.22),
    "gated_rms_norm": gated,
}
"""Of x, with a gate of x's shape and a weight for each value of a row, all of one dtype."""
EACH = pytest.mark.parametrize("run", NORMS.values(), ids=NORMS.keys())
EACH_DTYPE = pytest.mark.parametrize("dtype", DTYPES)


@pytest.fixture(autouse=True)
def _poisoned_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    poison_results(monkeypatch)


def drawn(shape: tuple[int, ...], dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    pick = partial(torch.randn, generator=torch.Generator().manual_seed(sum(shape)))
    return (pick(shape) * 3).to(dtype), pick(shape).to(dtype), pick(shape[-1:]).to(dtype)


@EACH
@EACH_DTYPE
@pytest.mark.parametrize("shape", SHAPES)
def test_against_the_reference(kernels: OpsIn, run: Norm, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    inputs = drawn(shape, dtype)
    out, expected = run(kernels(dtype), *inputs), run(reference, *inputs)  # type: ignore[arg-type]
    assert (out.shape, out.dtype) == (expected.shape, dtype)
    # a sum in another order may round the normalised value the other way: one step of its dtype
    torch.testing.assert_close(out, expected, rtol=2e-6 if dtype == torch.float32 else 2**-7, atol=1e-6)


@EACH
def test_bf16_rounds_where_the_reference_does(kernels: OpsIn, run: Norm) -> None:
    """Once at the end, or twice: else about every fourth value would differ."""
    inputs = drawn((50, 640), torch.bfloat16)
    out, expected = run(kernels(torch.bfloat16), *inputs), run(reference, *inputs)  # type: ignore[arg-type]
    assert float((out != expected).float().mean()) < 1e-3


@EACH
@EACH_DTYPE
def test_a_row_has_the_same_bits_alone_and_among_others_on_any_threads(
    kernels: OpsIn, run: Norm, dtype: torch.dtype
) -> None:
    ops, (x, gate, weight) = kernels(dtype), drawn((37, 577), dtype)
    together = run(ops, x, gate, weight)
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            alone = [run(ops, row[None], g[None], weight) for row, g in zip(x, gate, strict=True)]
            assert torch.equal(torch.cat(alone), together)
            assert torch.equal(run(ops, x, gate, weight), together)
    finally:
        torch.set_num_threads(before)


@EACH
@EACH_DTYPE
def test_views_are_read_in_place(kernels: OpsIn, run: Norm, dtype: torch.dtype) -> None:
    ops, (x, gate, weight) = kernels(dtype), drawn((6, 3, 40), dtype)
    expected = run(ops, x, gate, weight)
    wide = torch.full((6, 5, 99), torch.nan, dtype=dtype)
    wide[:, 1:4, 7:47] = x
    turned = gate.transpose(0, 2).contiguous().transpose(0, 2)
    for left in (wide[:, 1:4, 7:47], x.transpose(0, 1).contiguous().transpose(0, 1)):
        for right in (gate, turned, torch.cat([gate, gate], -1)[..., 40:]):
            out = run(ops, left, right, weight)
            assert out.is_contiguous()
            assert torch.equal(out, expected)
    assert torch.equal(run(ops, x[::2, 0], gate[::2, 0], weight), expected[::2, 0])
    assert torch.equal(run(ops, x, gate, weight.repeat_interleave(2)[::2]), expected)


@EACH
@EACH_DTYPE
def test_values_that_are_not_finite_stay_in_their_row(kernels: OpsIn, run: Norm, dtype: torch.dtype) -> None:
    x, gate, weight = drawn((6, 64), dtype)
    before = run(kernels(dtype), x, gate, weight)
    x[1, 3], x[4, 5] = torch.nan, torch.inf
    out = run(kernels(dtype), x, gate, weight)
    assert out[1].isnan().all()
    assert out[4, 5].isnan()
    assert torch.equal(out[[0, 2, 3, 5]], before[[0, 2, 3, 5]])


def test_gates_and_weights_of_other_dtypes(kernels: OpsIn) -> None:
    x, gate, weight = drawn((5, 70), torch.float32)
    ops = kernels(torch.bfloat16)
    for g, w in ((gate.bfloat16(), weight), (gate, weight.bfloat16())):
        out = ops.gated_rms_norm(x, g, w, EPS)
        assert out.dtype == g.dtype
        torch.testing.assert_close(out, reference.gated_rms_norm(x, g, w, EPS), rtol=2e-6, atol=1e-6)
    half = x.bfloat16()
    assert torch.equal(
        ops.gated_rms_norm(half, gate.bfloat16(), weight.bfloat16(), EPS),
        ops.gated_rms_norm(half.float(), gate.bfloat16(), weight.bfloat16(), EPS),
    )


def test_offset_weights_that_one_would_swallow_in_bf16(kernels: OpsIn) -> None:
    x = torch.full((1, 64), 100.0, dtype=torch.bfloat16)
    weight = torch.full((64,), 2**-9 * 1.5, dtype=torch.bfloat16)
    x[0, ::2] = 128.0
    ops = kernels(torch.bfloat16)
    assert not torch.equal(ops.offset_rms_norm(x, weight, 0.0), ops.offset_rms_norm(x, torch.zeros_like(weight), 0.0))


def test_zeros_stay_zeros(kernels: OpsIn) -> None:
    ops, zeros, weight = kernels(torch.float32), torch.zeros(2, 8), torch.ones(8)
    assert torch.equal(ops.l2_norm(zeros, 1e-6), zeros)
    assert torch.equal(ops.gated_rms_norm(zeros, torch.ones(2, 8), weight, 1e-6), zeros)


def test_a_norm_times_a_factor_is_rounded_once(kernels: OpsIn) -> None:
    x, ops = drawn((50, 640), torch.bfloat16)[0], kernels(torch.bfloat16)
    assert torch.equal(ops.l2_norm(x, EPS, 0.3), (ops.l2_norm(x.float(), EPS) * 0.3).bfloat16())
    assert torch.equal(ops.l2_norm(x, EPS, 1.0), ops.l2_norm(x, EPS))
    wide = x.double()
    truth = wide / (wide.square().sum(-1, keepdim=True) + EPS).sqrt() * 0.3
    torch.testing.assert_close(ops.l2_norm(x.float(), EPS, 0.3).double(), truth, rtol=1e-6, atol=1e-9)


def test_weights_that_do_not_fit_are_refused(kernels: OpsIn) -> None:
    ops, x = kernels(torch.float32), torch.ones(4, 6)
    for weight in (torch.ones(5), torch.ones(6, dtype=torch.bfloat16)):
        with pytest.raises(AssertionError):
            ops.rms_norm(x, weight, EPS)
