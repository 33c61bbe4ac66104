"""Recurrent ops in the torch reference against their float64 textbook recurrences, cut and packed in every way."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest
import torch
from recurrent_ops import MIDDLE, STRONG, WEAK, Case, Conv, PerHead, Pool, Scan, error, one_thread, run_all

from milepost.ops import ForwardBatch, Rows
from milepost.ops import torch as reference
from milepost.specs import CHUNK

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}
"""Largest error of any row (in the norm of `error`) and of any state (relative, in the 2-norm)."""

CASES: dict[str, Case] = {
    "conv": Conv(),
    "mamba2 weak": PerHead(delta=False),
    "mamba2 middle": PerHead(delta=False, groups=1, decay=MIDDLE),
    "mamba2 strong": PerHead(delta=False, groups=4, decay=STRONG),
    "delta weak": PerHead(delta=True),
    "delta middle": PerHead(delta=True, groups=1, decay=MIDDLE),
    "delta strong": PerHead(delta=True, groups=4, decay=STRONG),
    "scan weak": Scan(),
    "scan strong": Scan(decay=STRONG),
}
EACH = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
LENGTHS = (1, 63, 64, 130, 200, 257)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    with one_thread():
        yield


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def check(case: Case, size: int | None, seed: int, tolerance: float | None = None) -> None:
    """Several sequences in pieces of `size` (None: random, some empty), some grid points unwanted."""
    tolerance = tolerance or TOLERANCE[case.dtype]
    generator = seeded(seed)
    pool = Pool(case, generator)
    sequences = [pool.start(case.draw(length, generator)) for length in LENGTHS]
    worst = run_all(
        pool,
        sequences,
        lambda: int(torch.randint(150, (1,), generator=generator)) if size is None else size,
        wanted=pool.flip,
    )
    assert worst <= tolerance
    assert pool.worst_state <= tolerance


@EACH
@pytest.mark.parametrize("size", [1, 17, 63, 64, 65, 1000, None])
def test_pieces_of_every_size_packed_with_others(case: Case, size: int | None) -> None:
    check(case, size, seed=0)


@pytest.mark.parametrize("case", [PerHead(False), PerHead(True), PerHead(True, decay=STRONG), Scan()], ids=str)
def test_nothing_but_rounding_is_left_in_float64(case: Case) -> None:
    check(dataclasses.replace(case, dtype=torch.float64), None, seed=1)


@pytest.mark.parametrize("delta", [False, True])
def test_weak_decays_after_strong_ones(delta: bool) -> None:
    """A factor is the exp of a difference of two sums. Were these fp32, their rounding would move the factors of weak
    decays; here some sums come near CHUNK * STRONG."""
    case = PerHead(delta, decay=STRONG, mixed=True)
    check(case, None, seed=7)
    check(dataclasses.replace(case, dtype=torch.float64), None, seed=7)


def random_case(seed: int) -> Case:
    def below(limit: int) -> int:
        return 1 + int(torch.randint(limit, (1,), generator=generator))

    generator = seeded(seed)
    decay = (WEAK, MIDDLE, STRONG)[below(3) - 1]
    if seed % 4 == 0:
        return Conv(below(40), below(7), bias=below(2) == 1)
    if seed % 4 == 1:
        return Scan(below(40), below(20), decay)
    groups = below(3)
    return PerHead(seed % 4 == 2, groups * below(3), groups, below(40), below(40), decay)


@pytest.mark.parametrize("seed", [*range(8), *(pytest.param(s, marks=pytest.mark.full) for s in range(8, 120))])
def test_random_shapes(seed: int) -> None:
    check(random_case(seed), None, seed)


@pytest.mark.full
@pytest.mark.parametrize("delta", [False, True])
@pytest.mark.parametrize("decay", [WEAK, MIDDLE, STRONG])
def test_sizes_of_real_models(delta: bool, decay: float) -> None:
    check(PerHead(delta, 16, 16 if delta else 1, 128, 128 if delta else 64, decay), None, seed=2)


@EACH
def test_every_checkpoint_can_be_resumed_by_several_who_go_on_differently(case: Case) -> None:
    generator = seeded(3)
    pool = Pool(case, generator)
    first = pool.start(case.draw(300, generator))
    pool.step([(first, 300)])
    assert sorted(first.slots) == [64, 128, 192, 256]
    resumed = []
    for point, slot in first.slots.items():
        other = case.draw(300 - point, generator)
        forked = tuple(torch.cat([a[:point], b]) for a, b in zip(first.inputs, other, strict=True))
        resumed += [pool.start(inputs, point, slot) for inputs in (first.inputs, forked)]
    worst = run_all(pool, resumed, lambda: int(torch.randint(1, 100, (1,), generator=generator)))
    assert worst <= TOLERANCE[case.dtype]
    assert error(torch.cat(first.out), first.truth) <= TOLERANCE[case.dtype]


@EACH
def test_one_row(case: Case) -> None:
    pool = Pool(case, seeded(4))
    only = pool.start(case.draw(1, pool.generator))
    pool.step([(only, 1)])
    assert error(only.out[0], only.truth) <= TOLERANCE[case.dtype]


@EACH
def test_an_empty_batch_is_no_work(case: Case) -> None:
    pool = Pool(case, seeded(5))
    truth, _ = case.textbook(case.draw(1, pool.generator))
    before = {n: t.clone() for n, t in pool.checkpoint.items()}, {n: t.clone() for n, t in pool.window.items()}
    nothing = case.draw(0, pool.generator)
    out = case.run(nothing, pool.checkpoint, pool.window, ForwardBatch.pack([], []))
    assert out.shape == (0, *truth.shape[1:])
    pool.check_untouched(before, set(), set())


@pytest.mark.parametrize("case", [Conv(), PerHead(False), PerHead(True), Scan()], ids=str)
@pytest.mark.parametrize("at", [CHUNK, CHUNK + 40])
def test_the_states_matter(case: Case, at: int) -> None:
    """Two sequences that swap what the ops keep between steps swap the past: their outputs change."""

    def next_row(swap: str) -> torch.Tensor:
        generator = seeded(6)
        pool = Pool(case, generator)
        pair = [pool.start(case.draw(at + 1, generator)) for _ in range(2)]
        pool.step([(r, at) for r in pair])
        a, b = pair
        if swap == "checkpoints":
            a.state_slot, b.state_slot = b.state_slot, a.state_slot
        elif swap == "windows":
            a.window_slot, b.window_slot = b.window_slot, a.window_slot
        pool.step([(r, 1) for r in pair])
        return torch.cat([r.out[-1] for r in pair]).double()

    right = next_row("nothing")
    # between grid points a convolution and a token-by-token recurrence live on their window alone
    if at % CHUNK == 0 or isinstance(case, PerHead):
        assert error(next_row("checkpoints"), right) > 0.1
    if at % CHUNK:
        assert error(next_row("windows"), right) > 0.1


@pytest.mark.parametrize("delta", [False, True])
def test_a_row_that_forgets_everything_does_not_blur_the_rows_after_it(delta: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.nn.functional.normalize(torch.randn(CHUNK, 1, 8, generator=generator), dim=-1) for _ in range(2))
    v, beta = torch.randn(CHUNK, 1, 4, generator=generator), torch.rand(CHUNK, 1, generator=generator)
    log_g = torch.full((CHUNK, 1), -0.01)
    log_g[5::16] = -1000.0
    buffers = [torch.zeros(1, 1, 8, 4), *(torch.full((1, CHUNK, *t.shape[1:]), torch.nan) for t in (k, v, log_g))]
    batch = ForwardBatch.pack([Rows(0, CHUNK, range(CHUNK // 16), grid_slots=[-1])], [])
    if delta:
        out = reference.gated_delta(q, k, v, log_g, beta, *buffers, batch)
    else:
        out = reference.mamba2(q, k, v, log_g, *buffers, batch)

    state, truth = torch.zeros(8, 4, dtype=torch.float64), []
    for t in range(CHUNK):
        state = log_g[t, 0].double().exp() * state
        old = state.T @ k[t, 0].double() if delta else 0.0
        u = beta[t, 0].double() * (v[t, 0].double() - old) if delta else v[t, 0].double()
        state = state + k[t, 0].double()[:, None] * u
        truth.append(state.T @ q[t, 0].double())
    expected = torch.stack(truth)
    assert float((out[:, 0] - expected).norm() / expected.norm()) < 1e-6
