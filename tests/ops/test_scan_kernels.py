"""The selective scan's kernels against the textbook recurrence and the torch reference, cut and packed in every way."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch
from kernel_sets import OpsIn, poison_results
from recurrent_ops import (
    MIDDLE,
    NAN,
    STRONG,
    WEAK,
    Buffers,
    Pool,
    Running,
    Scan,
    Tensors,
    error,
    one_thread,
    pick,
    run_all,
)

from milepost.ops import ForwardBatch, Ops, Rows
from milepost.ops import torch as reference
from milepost.specs import CHUNK

TOLERANCE = 1e-5
"""As for the reference: of any row and any state (relative, in the 2-norm)."""


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    with one_thread():
        yield


@pytest.fixture(autouse=True)
def _poisoned_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    poison_results(monkeypatch)


@dataclass(frozen=True)
class KernelScan(Scan):
    """Runs the kernel, and compares what it returns and keeps with what the reference makes of the same memory."""

    ops: Ops | None = None

    def run(self, inputs: Tensors, checkpoint: Buffers, window: Buffers, batch: ForwardBatch) -> torch.Tensor:
        assert self.ops is not None
        x, dt, b, c = inputs
        state, last = checkpoint["state"].clone(), window["last"].clone()
        expected = reference.selective_scan(x, dt, self.rates(), b, c, state, last, batch)
        out = self.ops.selective_scan(x, dt, self.rates(), b, c, checkpoint["state"], window["last"], batch)
        written = batch.grid_slots[batch.grid_slots > 0]
        going_on = batch.window_slots[batch.seq_lens % CHUNK > 0]
        assert torch.equal(checkpoint["state"].isnan(), state.isnan())
        assert error(out, expected) <= TOLERANCE
        assert error(checkpoint["state"][written], state[written]) <= TOLERANCE
        assert error(window["last"][going_on], last[going_on]) <= TOLERANCE
        return out


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def check(case: KernelScan, seed: int) -> None:
    """Several sequences in random pieces, some empty, some grid points unwanted."""
    generator = seeded(seed)
    pool = Pool(case, generator)
    sequences = [pool.start(case.draw(length, generator)) for length in (1, 63, 64, 130, 200)]
    worst = run_all(pool, sequences, lambda: int(torch.randint(150, (1,), generator=generator)), wanted=pool.flip)
    assert worst <= TOLERANCE
    assert pool.worst_state <= TOLERANCE


@pytest.mark.parametrize("decay", [WEAK, MIDDLE, STRONG])
@pytest.mark.parametrize(("channels", "size"), [(1, 1), (6, 4), (17, 16), (40, 20), (33, 33)])
def test_against_the_textbook_and_the_reference(kernels: OpsIn, channels: int, size: int, decay: float) -> None:
    check(KernelScan(channels, size, decay, torch.float32, kernels(torch.float32)), seed=channels)


@pytest.mark.full
@pytest.mark.parametrize("seed", range(100))
def test_random_shapes(kernels: OpsIn, seed: int) -> None:
    def below(limit: int) -> int:
        return 1 + int(torch.randint(limit, (1,), generator=generator))

    generator = seeded(seed)
    decay = (WEAK, MIDDLE, STRONG)[below(3) - 1]
    check(KernelScan(below(100), below(40), decay, torch.float32, kernels(torch.float32)), seed)


def run_in_pieces(case: KernelScan, size: int) -> tuple[Running, Pool]:
    pool = Pool(case, seeded(0))
    running, other = (pool.start(case.draw(200, pool.generator)) for _ in range(2))
    while running.left:
        piece = min(size, running.left)
        pool.step([(other, piece), (running, piece)] if size % 2 else [(running, piece)])
    return running, pool


@pytest.mark.parametrize(("channels", "size"), [(50, 16), (35, 21)])
def test_bits_do_not_depend_on_pieces_or_neighbours(kernels: OpsIn, channels: int, size: int) -> None:
    case = KernelScan(channels, size, MIDDLE, torch.float32, kernels(torch.float32))
    whole, pool = run_in_pieces(case, 200)
    for count in (1, 17, 64, 65):
        pieces, other = run_in_pieces(case, count)
        assert torch.equal(torch.cat(pieces.out), whole.out[0])
        assert torch.equal(other.window["last"][pieces.window_slot], pool.window["last"][whole.window_slot])
        for point, slot in whole.slots.items():
            assert torch.equal(other.checkpoint["state"][pieces.slots[point]], pool.checkpoint["state"][slot])


def one_piece(ops: Ops, channels: int = 77, size: int = 18, dense: bool = False) -> Tensors:
    """Three sequences at once; inputs lie in wider tensors unless `dense`. Outputs, checkpoints, windows."""
    generator, rows = seeded(1), 150 + 1 + 70
    a = -pick((channels, size), generator, torch.float32).abs()
    x, dt = pick((rows, 2 * channels), generator, torch.float32).chunk(2, -1)
    _, b, c = pick((rows, 5 + 2 * size), generator, torch.float32).split((5, size, size), -1)
    state, window = (torch.full((n, channels, size), NAN) for n in (9, 4))
    state[0] = 0
    state[4], window[2] = (pick((channels, size), generator, torch.float32) for _ in range(2))
    pieces = [
        Rows(0, 150, [0] * 10, 0, 1, [5, -1]),
        Rows(104, 105, [0] * 10, 4, 2),
        Rows(64, 134, [0] * 10, 4, 3, [6]),
    ]
    given = (x, dt.abs(), b, c)
    x, dt, b, c = (t.contiguous() for t in given) if dense else given
    out = ops.selective_scan(x, dt, a, b, c, state, window, ForwardBatch.pack(pieces, []))
    return out, state, window


def same(results: Tensors, expected: Tensors) -> bool:
    return all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(results, expected, strict=True))


@pytest.mark.parametrize("size", [1, 16, 18])
def test_views_and_threads(kernels: OpsIn, size: int) -> None:
    ops = kernels(torch.float32)
    expected = one_piece(ops, size=size, dense=True)
    assert expected[0].isfinite().all()
    for threads in (1, 2, 5):
        torch.set_num_threads(threads)
        assert same(one_piece(ops, size=size), expected)
    _, state, window = expected
    assert state[[1, 2, 3, 7, 8]].isnan().all()
    assert window[0].isnan().all()


def test_a_channel_has_the_same_bits_in_every_lane(kernels: OpsIn) -> None:
    generator = seeded(3)
    x, dt = (pick((20, 1), generator, torch.float32).expand(20, 37) for _ in range(2))
    b, c = (pick((20, 9), generator, torch.float32) for _ in range(2))
    rates = -torch.rand(9, generator=generator).expand(37, 9)
    state, window = torch.zeros(1, 37, 9), torch.full((1, 37, 9), NAN)
    batch = ForwardBatch.pack([Rows(0, 20, [0] * 2)], [])
    out = kernels(torch.float32).selective_scan(x, dt.abs(), rates, b, c, state, window, batch)
    assert torch.equal(out, out[:, :1].expand(20, 37))
    assert torch.equal(window[0], window[0, :1].expand(37, 9))


def test_values_that_are_not_finite_stay_in_their_channel_and_sequence(kernels: OpsIn) -> None:
    def run(value: float) -> torch.Tensor:
        generator = seeded(2)
        x, dt = (pick((40, 50), generator, torch.float32).abs() for _ in range(2))
        b, c = (pick((40, 16), generator, torch.float32) for _ in range(2))
        x[10, 7] = x[25, 49] = value
        rates = -pick((50, 16), generator, torch.float32).abs()
        state, window = torch.zeros(1, 50, 16), torch.full((2, 50, 16), NAN)
        pieces = [Rows(0, 20, [0] * 3, 0, 0), Rows(0, 20, [0] * 3, 0, 1)]
        return kernels(torch.float32).selective_scan(x, dt, rates, b, c, state, window, ForwardBatch.pack(pieces, []))

    plain, reached = run(0.5), torch.zeros(40, 50, dtype=torch.bool)
    reached[10:20, 7] = reached[25:, 49] = True
    for value in (NAN, float("inf")):
        out = run(value)
        assert torch.equal(out.isfinite(), ~reached)
        assert torch.equal(out[~reached], plain[~reached])


def test_no_rows(kernels: OpsIn) -> None:
    state, window = torch.zeros(1, 8, 4), torch.full((1, 8, 4), NAN)
    batch = ForwardBatch.pack([Rows(5, 5, [0], 0, 0)], [])
    x, b = torch.ones(0, 8), torch.ones(0, 4)
    out = kernels(torch.float32).selective_scan(x, x, -torch.ones(8, 4), b, b, state, window, batch)
    assert out.shape == (0, 8)
    assert window.isnan().all()


def test_buffers_of_another_dtype_or_order_are_refused(kernels: OpsIn) -> None:
    x, b, batch = torch.ones(1, 8), torch.ones(1, 4), ForwardBatch.pack([Rows(0, 1, [0])], [])
    state, window = torch.zeros(1, 8, 4), torch.zeros(1, 8, 4)
    for changed in ((state.bfloat16(), window), (state, torch.zeros(1, 4, 8).mT)):
        with pytest.raises(AssertionError):
            kernels(torch.float32).selective_scan(x, x, -torch.ones(8, 4), b, b, *changed, batch)
