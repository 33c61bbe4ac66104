"""What follows a scan, in one kernel: against the torch reference and float64, each row by itself."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from kernel_sets import OpsIn, poison_results

from milepost.ops import Ops
from milepost.ops import torch as reference

EPS = 1e-5
EACH_DTYPE = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
EACH_ORDER = pytest.mark.parametrize("gate_first", [True, False])


@pytest.fixture(autouse=True)
def _poisoned_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    poison_results(monkeypatch)


@dataclass(frozen=True)
class Drawn:
    """All that the op takes, and how many equal parts of a row are normed."""

    y: torch.Tensor
    x: torch.Tensor
    skip: torch.Tensor
    gate: torch.Tensor
    weight: torch.Tensor | None
    num_groups: int

    def run(self, ops: Ops, gate_first: bool) -> torch.Tensor:
        args = self.y, self.x, self.skip, self.gate, self.weight, self.num_groups, EPS, gate_first
        return ops.scan_output(*args)

    def expected(self, gate_first: bool) -> torch.Tensor:
        return self.run(reference, gate_first)  # type: ignore[arg-type]

    def truth(self, gate_first: bool) -> torch.Tensor:
        """In float64, not rounded."""
        made = self.y.double() + self.x.double() * self.skip.double()
        gates = self.gate.double() * torch.sigmoid(self.gate.double())
        if self.weight is None:
            return made * gates
        made = made * gates if gate_first else made
        parts = made.view(len(made), self.num_groups, made.shape[1] // self.num_groups)
        made = (parts / (parts.square().mean(-1, keepdim=True) + EPS).sqrt()).flatten(-2) * self.weight.double()
        return made if gate_first else made * gates

    def rows(self, start: int, end: int) -> Drawn:
        y, x, gate = (t[start:end] for t in (self.y, self.x, self.gate))
        return Drawn(y, x, self.skip, gate, self.weight, self.num_groups)


def drawn(rows: int, size: int, num_groups: int, dtype: torch.dtype) -> Drawn:
    """Without groups there is no weight."""
    generator = torch.Generator().manual_seed(rows + size)
    y, x, gate = (torch.randn(rows, size, generator=generator) * 2 for _ in range(3))
    skip, weight = torch.randn(2, size, generator=generator)
    return Drawn(y, x, skip, gate.to(dtype), weight.to(dtype) if num_groups else None, num_groups or 1)


@EACH_ORDER
@EACH_DTYPE
@pytest.mark.parametrize(
    ("rows", "size", "num_groups"),
    [
        *[(3, size, 1) for size in (1, 15, 16, 17, 63, 64, 65, 577, 1536)],
        *[(3, size, 0) for size in (1, 15, 16, 17, 65, 577)],
        *[(2, 6, 3), (4, 5 * 17, 5), (3, 2 * 200, 2), (1, 8 * 16, 8), (5, 3 * 65, 3), (37, 96, 2)],
        *[(0, 16, 1), (0, 16, 0), (0, 16, 2), (4, 0, 1), (4, 0, 0)],
    ],
)
def test_against_the_reference_and_the_truth(
    kernels: OpsIn, rows: int, size: int, num_groups: int, dtype: torch.dtype, gate_first: bool
) -> None:
    case = drawn(rows, size, num_groups, dtype)
    out, expected = case.run(kernels(dtype), gate_first), case.expected(gate_first)
    assert (out.shape, out.dtype) == (expected.shape, dtype) == ((rows, size), dtype)
    assert out.is_contiguous()
    rtol = 3e-6 if dtype == torch.float32 else 2**-7
    torch.testing.assert_close(out, expected, rtol=rtol, atol=1e-6)
    torch.testing.assert_close(out.double(), case.truth(gate_first), rtol=rtol, atol=2e-6)


@EACH_ORDER
@pytest.mark.parametrize("num_groups", [0, 1, 4])
def test_bf16_is_rounded_once(kernels: OpsIn, num_groups: int, gate_first: bool) -> None:
    """Else about every fourth value would differ."""
    case = drawn(50, 640, num_groups, torch.bfloat16)
    out = case.run(kernels(torch.bfloat16), gate_first)
    assert float((out != case.expected(gate_first)).float().mean()) < 1e-3
    weight = None if case.weight is None else case.weight.float()
    wide = Drawn(case.y, case.x, case.skip, case.gate.float(), weight, case.num_groups)
    assert torch.equal(out, wide.run(kernels(torch.bfloat16), gate_first).bfloat16())


@EACH_ORDER
@EACH_DTYPE
@pytest.mark.parametrize("num_groups", [0, 1, 3])
def test_a_row_has_the_same_bits_alone_and_among_others_on_any_threads(
    kernels: OpsIn, num_groups: int, dtype: torch.dtype, gate_first: bool
) -> None:
    ops, case = kernels(dtype), drawn(37, 3 * 193, num_groups, dtype)
    together = case.run(ops, gate_first)
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            alone = [case.rows(i, i + 1).run(ops, gate_first) for i in range(37)]
            assert torch.equal(torch.cat(alone), together)
            assert torch.equal(case.run(ops, gate_first), together)
            # rows that are shorter, or longer, leave nothing behind
            drawn(3, 700, 1, dtype).run(ops, gate_first)
            drawn(3, 20, 1, dtype).run(ops, gate_first)
    finally:
        torch.set_num_threads(before)


@EACH_ORDER
@EACH_DTYPE
@pytest.mark.parametrize("num_groups", [0, 2])
def test_views_are_read_in_place(kernels: OpsIn, num_groups: int, dtype: torch.dtype, gate_first: bool) -> None:
    """As layers have them: the gate and x are columns of what a projection and a convolution made."""
    ops, case = kernels(dtype), drawn(6, 46, num_groups, dtype)
    expected = case.run(ops, gate_first)

    def columns(t: torch.Tensor, first: int, width: int) -> torch.Tensor:
        wide = torch.full((t.shape[0], width), torch.nan, dtype=t.dtype)
        wide[:, first : first + t.shape[1]] = t
        return wide[:, first : first + t.shape[1]]

    def turned(t: torch.Tensor) -> torch.Tensor:
        return t.T.contiguous().T

    weight = None if case.weight is None else case.weight.repeat_interleave(2)[::2]
    views = [
        Drawn(case.y, columns(case.x, 3, 99), case.skip, columns(case.gate, 40, 87), case.weight, case.num_groups),
        Drawn(columns(case.y, 1, 50), turned(case.x), case.skip, turned(case.gate), weight, case.num_groups),
        Drawn(turned(case.y), case.x, case.skip.repeat_interleave(3)[::3], case.gate, weight, case.num_groups),
    ]
    for view in views:
        out = view.run(ops, gate_first)
        assert out.is_contiguous()
        assert torch.equal(out, expected)


@EACH_ORDER
@EACH_DTYPE
def test_values_that_are_not_finite_stay_in_their_row_or_its_part(
    kernels: OpsIn, dtype: torch.dtype, gate_first: bool
) -> None:
    case = drawn(6, 64, 2, dtype)
    before = case.run(kernels(dtype), gate_first)
    case.y[1, 3] = case.x[4, 40] = torch.nan
    out = case.run(kernels(dtype), gate_first)
    assert out[1, :32].isnan().all()
    assert out[4, 32:].isnan().all()
    assert torch.equal(out[1, 32:], before[1, 32:])
    assert torch.equal(out[4, :32], before[4, :32])
    assert torch.equal(out[[0, 2, 3, 5]], before[[0, 2, 3, 5]])
    ungated = Drawn(case.y, case.x, case.skip, case.gate, None, 1).run(kernels(dtype), gate_first)
    assert torch.equal(ungated.isnan(), case.y.isnan() | case.x.isnan())


def test_what_does_not_fit_is_refused(kernels: OpsIn) -> None:
    ops, wide = kernels(torch.bfloat16), torch.ones(4, 6)
    half, skip, weight = wide.bfloat16(), torch.ones(6), torch.ones(6).bfloat16()
    good = (wide, wide, skip, half, weight)
    assert ops.scan_output(*good, 2, EPS, True).dtype == torch.bfloat16
    for i, wrong in [
        (0, half),
        (1, half),
        (2, skip.bfloat16()),
        (4, skip),
        (1, wide[:3]),
        (2, skip[:5]),
        (3, half[:2]),
    ]:
        with pytest.raises(AssertionError):
            ops.scan_output(*good[:i], wrong, *good[i + 1 :], 2, EPS, True)
    with pytest.raises(AssertionError):
        ops.scan_output(*good, 4, EPS, True)  # parts of one and a half values
