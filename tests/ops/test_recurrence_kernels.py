"""The kernels of the chunked recurrences against the textbook and the torch reference, and bit for bit against
themselves, however a sequence is cut, packed, threaded, and whatever lay in memory before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pytest
import torch
from kernel_sets import OpsIn, poison_results
from recurrent_ops import MIDDLE, NAN, STRONG, WEAK, Buffers, PerHead, Pool, Running, Tensors, run_all

from milepost.ops import ForwardBatch, Ops, Rows
from milepost.ops import torch as reference
from milepost.specs import CHUNK

TOLERANCE = 1e-5
"""Largest error of any row (in the norm of `error`) and of any state against float64."""

BOTH = pytest.mark.parametrize("delta", [False, True], ids=["mamba2", "delta"])
SIZES = [(1, 1, 1, 1), (6, 3, 24, 40), (5, 1, 33, 37), (2, 2, 8, 70), (3, 1, 128, 32), (2, 2, 64, 128), (1, 1, 300, 5)]
"""Heads, groups, K, V: vectors in full and in part, one tile of values and several, a group's heads at once or not."""


@dataclass(frozen=True)
class Kernel(PerHead):
    """The op of one instruction set, or the reference."""

    ops: Ops | None = None

    def run(self, inputs: Tensors, checkpoint: Buffers, window: Buffers, batch: ForwardBatch) -> torch.Tensor:
        ops = self.ops or reference
        op = ops.gated_delta if self.delta else ops.mamba2
        return op(*inputs, checkpoint["state"], window["k"], window["u"], window["log_g"], batch)


def test_there_are_kernels(kernels: OpsIn) -> None:
    ops = kernels(torch.bfloat16)
    assert ops.mamba2 is not reference.mamba2
    assert ops.gated_delta is not reference.gated_delta


def case_of(
    kernels: OpsIn, delta: bool, sizes: tuple[int, int, int, int] = (6, 3, 24, 40), decay: float = WEAK
) -> Kernel:
    return Kernel(delta, *sizes, decay, ops=kernels(torch.float32))


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@dataclass(frozen=True)
class Left:
    """What a sequence has left behind: outputs, states by grid point, and what its window holds since the last one."""

    out: torch.Tensor
    states: dict[int, torch.Tensor]
    window: Tensors

    def same_as(self, other: Left) -> bool:
        """To the bit; grid points that one of the two did not store are passed over."""
        points = self.states.keys() & other.states.keys()
        pairs = [(self.states[p], other.states[p]) for p in points]
        pairs += [(self.out, other.out), *zip(self.window, other.window, strict=True)]
        return all(torch.equal(a, b) for a, b in pairs)


def begin(pool: Pool, inputs: Tensors) -> Running:
    """A new sequence whose truth nobody asks for."""
    nothing = torch.zeros(inputs[0].shape[0] + 1, *pool.case.shapes()[0]["state"])
    return Running(inputs, nothing[1:], nothing, pool.free_windows.pop())


def left_by(pool: Pool, running: Running) -> Left:
    states = {point: pool.checkpoint["state"][slot].clone() for point, slot in running.slots.items()}
    since = running.computed % CHUNK
    window = tuple(buffer[running.window_slot, :since].clone() for buffer in pool.window.values())
    return Left(torch.cat(running.out), states, window)


def read(case: Kernel, inputs: Tensors, sizes: Sequence[int], wanted: Callable[[], bool] = lambda: True) -> Left:
    """The sequence by itself, in pieces of `sizes`."""
    pool = Pool(case, seeded(0), num_slots=inputs[0].shape[0] // CHUNK + 3, num_windows=2)
    running = begin(pool, inputs)
    for size in sizes:
        pool.step([(running, size)], wanted)
    assert running.left == 0
    return left_by(pool, running)


def check_textbook(case: Kernel, seed: int, lengths: Sequence[int]) -> None:
    """Sequences in random pieces, packed with others in NaN memory, some grid points unwanted."""
    generator = seeded(seed)
    pool = Pool(case, generator)
    sequences = [pool.start(case.draw(length, generator)) for length in lengths]
    worst = run_all(pool, sequences, lambda: int(torch.randint(150, (1,), generator=generator)), wanted=pool.flip)
    assert worst <= TOLERANCE
    assert pool.worst_state <= TOLERANCE


@BOTH
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_against_the_textbook(kernels: OpsIn, delta: bool, sizes: tuple[int, int, int, int]) -> None:
    decay = (WEAK, MIDDLE, STRONG)[SIZES.index(sizes) % 3]
    check_textbook(case_of(kernels, delta, sizes, decay), 0, (1, 64, 150))


@BOTH
def test_weak_decays_after_strong_ones(kernels: OpsIn, delta: bool) -> None:
    check_textbook(replace(case_of(kernels, delta, decay=STRONG), mixed=True), 1, (150, 130))


def random_sizes(generator: torch.Generator) -> tuple[int, int, int, int]:
    groups, per_group, k_size, v_size = (
        1 + int(torch.randint(most, (1,), generator=generator)) for most in (3, 5, 80, 150)
    )
    return groups * per_group, groups, k_size, v_size


@pytest.mark.full
@BOTH
@pytest.mark.parametrize("seed", range(40))
def test_random_sizes_against_the_textbook(kernels: OpsIn, delta: bool, seed: int) -> None:
    sizes = random_sizes(seeded(seed))
    check_textbook(case_of(kernels, delta, sizes, (WEAK, MIDDLE, STRONG)[seed % 3]), seed, (1, 63, 64, 130, 257))


@pytest.mark.full
@BOTH
@pytest.mark.parametrize("decay", [WEAK, MIDDLE, STRONG])
def test_sizes_of_real_models(kernels: OpsIn, delta: bool, decay: float) -> None:
    sizes = (16, 16, 128, 128) if delta else (48, 1, 128, 32)
    check_textbook(case_of(kernels, delta, sizes, decay), 2, (64, 200))


@BOTH
@pytest.mark.parametrize("seed", range(4))
def test_against_the_reference(kernels: OpsIn, delta: bool, seed: int) -> None:
    """Outputs, states and windows."""
    generator = seeded(seed)
    case = case_of(kernels, delta, random_sizes(generator), (WEAK, MIDDLE, STRONG)[seed % 3])
    inputs, sizes = case.draw(200, generator), [30 * seed + 1, 199 - 30 * seed]
    ours, theirs = read(case, inputs, sizes), read(replace(case, ops=None), inputs, sizes)
    assert ours.states.keys() == theirs.states.keys() == {64, 128, 192}
    pairs = [(ours.states[p], theirs.states[p]) for p in ours.states]
    for a, b in [*pairs, (ours.out, theirs.out), *zip(ours.window, theirs.window, strict=True)]:
        assert a.shape == b.shape
        torch.testing.assert_close(a, b, rtol=1e-5, atol=3e-5 * float(b.abs().max()))


@BOTH
@pytest.mark.parametrize("sizes", [(6, 3, 24, 40), (3, 1, 64, 33)], ids=str)
def test_a_cut_anywhere_changes_no_bit(kernels: OpsIn, delta: bool, sizes: tuple[int, int, int, int]) -> None:
    case = case_of(kernels, delta, sizes)
    inputs = case.draw(133, seeded(0))
    whole = read(case, inputs, [133])
    assert whole.states.keys() == {64, 128}
    assert not whole.out.isnan().any()
    for cut in [*range(1, 133, 5), 63, 64, 65, 127, 128, 129, 132]:
        assert read(case, inputs, [cut, 133 - cut]).same_as(whole), cut


@BOTH
@pytest.mark.parametrize("sizes", [(5, 1, 33, 37), (3, 1, 128, 32), (2, 2, 16, 128)], ids=str)
def test_decode_gives_the_bits_of_prefill(kernels: OpsIn, delta: bool, sizes: tuple[int, int, int, int]) -> None:
    case = case_of(kernels, delta, sizes, MIDDLE)
    inputs = case.draw(140, seeded(1))
    whole = read(case, inputs, [140])
    for size in (1, 2, 7):
        assert read(case, inputs, [size] * (140 // size)).same_as(whole), size


@BOTH
def test_unwanted_grid_points_change_no_bit(kernels: OpsIn, delta: bool) -> None:
    """Two sequences side by side whose states are carried from chunk to chunk."""
    case = case_of(kernels, delta)
    drawn = [case.draw(330, seeded(seed)) for seed in (2, 3)]
    whole = [read(case, inputs, [330]) for inputs in drawn]
    for sizes in ([330], [10, 320], [64, 200, 66]):
        pool = Pool(case, seeded(0), num_slots=6, num_windows=2)
        sequences = [begin(pool, inputs) for inputs in drawn]
        for size in sizes:
            pool.step([(running, size) for running in sequences], wanted=lambda: False)
        for running, expected in zip(sequences, whole, strict=True):
            kept = left_by(pool, running)
            assert len(kept.states) == {1: 0, 2: 0, 3: 2}[len(sizes)]
            assert kept.same_as(expected), sizes


@BOTH
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_other_sequences_and_threads_change_no_bit(kernels: OpsIn, delta: bool, threads: int) -> None:
    case, generator = case_of(kernels, delta, (5, 1, 33, 20)), seeded(threads)
    drawn = [case.draw(length, generator) for length in (1, 3, 64, 70, 150)]
    alone = [read(case, inputs, [inputs[0].shape[0]]) for inputs in drawn]
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        for most in (4, 150):
            pool = Pool(case, generator, num_slots=8, num_windows=5)
            sequences = [begin(pool, inputs) for inputs in drawn]
            while unfinished := [r for r in sequences if r.left]:
                size = int(torch.randint(1, most + 1, (1,), generator=generator))
                pool.step([(r, min(size, r.left)) for r in reversed(unfinished)])
            for running, expected in zip(sequences, alone, strict=True):
                assert left_by(pool, running).same_as(expected), most
    finally:
        torch.set_num_threads(before)


@BOTH
def test_what_lay_in_fresh_memory_does_not_matter(kernels: OpsIn, delta: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Buffers of the pool are NaN in every test; here outputs and scratch are, too."""
    case = case_of(kernels, delta)
    inputs = case.draw(210, seeded(3))
    expected = read(case, inputs, [210])
    poison_results(monkeypatch)
    for sizes in ([210], [50, 100, 60], [1] * 210):
        assert read(case, inputs, sizes, wanted=lambda: False).same_as(expected)


@BOTH
@pytest.mark.parametrize("value", [NAN, torch.inf])
def test_a_row_that_is_not_finite_spoils_none_before_it_and_no_other_sequence(
    kernels: OpsIn, delta: bool, value: float
) -> None:
    case = case_of(kernels, delta)
    inputs, other = case.draw(100, seeded(4)), case.draw(100, seeded(5))
    clean, other_clean = read(case, inputs, [100]), read(case, other, [100])
    for place, tensor in enumerate(inputs):
        for row in (0, 37, 66):
            spoilt = list(inputs)
            spoilt[place] = tensor.clone()
            spoilt[place][row] = value if place != 3 else NAN
            pool = Pool(case, seeded(0), num_slots=4, num_windows=2)
            bad, good = begin(pool, tuple(spoilt)), begin(pool, other)
            pool.step([(bad, 100), (good, 100)])
            out = left_by(pool, bad).out
            assert not out[row].isfinite().any(), (place, row)
            assert torch.equal(out[:row], clean.out[:row]), (place, row)
            assert left_by(pool, good).same_as(other_clean), (place, row)
            if place == 0:  # a query is read by its row alone
                assert torch.equal(out[row + 1 :], clean.out[row + 1 :])


@BOTH
def test_columns_of_a_wide_tensor(kernels: OpsIn, delta: bool) -> None:
    case = case_of(kernels, delta)
    inputs = case.draw(90, seeded(6))
    expected = read(case, inputs, [90])
    wide = torch.cat([t.flatten(1) for t in inputs], dim=1)
    parts = torch.split(wide, [t[0].numel() for t in inputs], dim=1)
    views = tuple(p.reshape(90, *t.shape[1:]) for p, t in zip(parts, inputs, strict=True))
    assert all(v.data_ptr() == p.data_ptr() for v, p in zip(views, parts, strict=True))
    turned = tuple(t.transpose(0, -1).contiguous().transpose(0, -1) for t in inputs)  # no row's values side by side
    for given in (views, turned):
        state, window = case.shapes()
        checkpoint = {n: torch.zeros(3, *shape) for n, shape in state.items()}
        windows = {n: torch.zeros(1, *shape) for n, shape in window.items()}
        out = case.run(given, checkpoint, windows, ForwardBatch.pack([Rows(0, 90, range(6), grid_slots=[1])], []))
        assert torch.equal(out, expected.out)
        assert torch.equal(checkpoint["state"][1], expected.states[64])


@BOTH
def test_an_empty_batch_is_no_work(kernels: OpsIn, delta: bool) -> None:
    case = case_of(kernels, delta)
    pool = Pool(case, seeded(7))
    before = {n: t.clone() for n, t in pool.checkpoint.items()}, {n: t.clone() for n, t in pool.window.items()}
    nothing = case.draw(0, pool.generator)
    for rows in ([], [Rows(5, 5, [0])]):
        out = case.run(nothing, pool.checkpoint, pool.window, ForwardBatch.pack(rows, []))
        assert out.shape == (0, case.heads, case.v_size)
    pool.check_untouched(before, set(), set())


@BOTH
def test_a_row_that_forgets_everything_does_not_blur_the_rows_after_it(kernels: OpsIn, delta: bool) -> None:
    case = case_of(kernels, delta, (1, 1, 8, 4))
    inputs = case.draw(CHUNK, seeded(8))
    inputs[3][5::16] = -1000.0
    truth, _ = case.textbook(inputs)
    out = read(case, inputs, [CHUNK]).out
    assert float((out - truth).norm() / truth.norm()) < 1e-6
