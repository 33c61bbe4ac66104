"""The convolution's kernels: the bits of the torch reference, in outputs, windows and checkpoints; and silu of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import pytest
import torch
from kernel_sets import OpsIn, poison_results
from recurrent_ops import NAN, Buffers, Conv, Pool, Running, Tensors, one_thread, pick, run_all

from milepost.ops import ForwardBatch, Ops, Rows
from milepost.ops import torch as reference
from milepost.specs import CHUNK

DTYPES = [torch.float32, torch.bfloat16]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    with one_thread():
        yield


@pytest.fixture(autouse=True)
def _poisoned_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    poison_results(monkeypatch)


def same(out: torch.Tensor, expected: torch.Tensor) -> bool:
    """Equal bits; NaN where NaN is."""
    return torch.equal(out.isnan(), expected.isnan()) and torch.equal(out.nan_to_num(), expected.nan_to_num())


@dataclass(frozen=True)
class KernelConv(Conv):
    """Runs the kernel, and compares what it returns and keeps with what the reference makes of the same memory."""

    ops: Ops | None = None

    def run(self, inputs: Tensors, checkpoint: Buffers, window: Buffers, batch: ForwardBatch) -> torch.Tensor:
        assert self.ops is not None
        state, kept = checkpoint["conv"].clone(), window["conv"].clone()
        through_silu = self.through_silu(inputs, state.clone(), kept.clone(), batch)
        expected = reference.causal_conv(*inputs, *self.weights(), state, kept, batch)
        out = self.ops.causal_conv(*inputs, *self.weights(), checkpoint["conv"], window["conv"], batch)
        assert torch.equal(out, expected)
        assert same(checkpoint["conv"], state)
        for slot, end in zip(batch.window_slots.tolist(), batch.seq_lens.tolist(), strict=True):
            valid = self.num_valid(end % CHUNK)["conv"] if end % CHUNK else 0
            assert torch.equal(window["conv"][slot, :valid], kept[slot, :valid])
        for made, wanted in zip(
            through_silu, (self.ops.silu(out.float()), checkpoint["conv"], window["conv"]), strict=True
        ):
            assert made.dtype == wanted.dtype
            assert same(made, wanted)
        return out

    def through_silu(
        self, inputs: Tensors, state: torch.Tensor, window: torch.Tensor, batch: ForwardBatch
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Outputs fp32, and what is kept."""
        assert self.ops is not None
        return self.ops.causal_conv(*inputs, *self.weights(), state, window, batch, silu=True), state, window


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def run_random(case: KernelConv, seed: int) -> None:
    """Several sequences in random pieces, some empty, some grid points unwanted."""
    generator = seeded(seed)
    pool = Pool(case, generator)
    sequences = [pool.start(case.draw(length, generator)) for length in (1, 63, 64, 130, 200)]
    run_all(pool, sequences, lambda: int(torch.randint(150, (1,), generator=generator)), wanted=pool.flip)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("channels", "taps", "bias"),
    [(1, 4, True), (5, 1, False), (17, 2, True), (40, 3, False), (96, 4, True), (128, 3, True), (331, 4, False)],
)
def test_bits_of_the_reference(kernels: OpsIn, channels: int, taps: int, bias: bool, dtype: torch.dtype) -> None:
    run_random(KernelConv(channels, taps, bias, dtype, kernels(dtype)), seed=channels)


@pytest.mark.parametrize("taps", [8, 64, 65])
def test_many_taps(kernels: OpsIn, taps: int) -> None:
    run_random(KernelConv(20, taps, True, torch.float32, kernels(torch.float32)), seed=taps)


@pytest.mark.full
@pytest.mark.parametrize("seed", range(150))
def test_random_shapes(kernels: OpsIn, seed: int) -> None:
    def below(limit: int) -> int:
        return 1 + int(torch.randint(limit, (1,), generator=generator))

    generator = seeded(seed)
    dtype = DTYPES[below(2) - 1]
    taps = below(5) if below(4) > 1 else below(65)
    run_random(KernelConv(below(300), taps, below(2) == 1, dtype, kernels(dtype)), seed)


def run_in_pieces(case: KernelConv, size: int) -> tuple[Running, Pool]:
    pool = Pool(case, seeded(0))
    running, other = (pool.start(case.draw(200, pool.generator)) for _ in range(2))
    while running.left:
        piece = min(size, running.left)
        pool.step([(other, piece), (running, piece)] if size % 2 else [(running, piece)])
    return running, pool


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("channels", [7, 150])
def test_bits_do_not_depend_on_pieces_or_neighbours(kernels: OpsIn, channels: int, dtype: torch.dtype) -> None:
    case = KernelConv(channels, 4, True, dtype, kernels(dtype))
    whole, pool = run_in_pieces(case, 200)
    window = pool.window["conv"][whole.window_slot, : 3 + 200 % CHUNK]
    for size in (1, 17, 64, 65):
        pieces, other = run_in_pieces(case, size)
        assert torch.equal(torch.cat(pieces.out), whole.out[0])
        assert torch.equal(other.window["conv"][pieces.window_slot, : 3 + 200 % CHUNK], window)
        for point, slot in whole.slots.items():
            assert torch.equal(other.checkpoint["conv"][pieces.slots[point]], pool.checkpoint["conv"][slot])


def one_piece(dtype: torch.dtype, run: Callable[..., torch.Tensor]) -> Tensors:
    """Three sequences at once, x in every second column of a wider tensor's half: outputs, checkpoints, windows."""
    generator = seeded(1)
    channels, rows = 300, 150 + 1 + 70
    x = pick((rows, 2 * channels), generator, dtype)[:, :channels]
    weight, bias = pick((channels, 1, 4), generator, dtype)[:, 0], pick((channels,), generator, dtype)
    state, window = torch.full((9, 3, channels), NAN, dtype=dtype), torch.full((4, 67, channels), NAN, dtype=dtype)
    state[0] = 0
    state[4] = pick((3, channels), generator, dtype)
    window[2, : 3 + 40] = pick((43, channels), generator, dtype)
    pieces = [
        Rows(0, 150, [0] * 10, 0, 1, [5, -1]),
        Rows(104, 105, [0] * 10, 4, 2),
        Rows(64, 134, [0] * 10, 4, 3, [6]),
    ]
    out = run(x, weight, bias, state, window, ForwardBatch.pack(pieces, []))
    return out, state, window


@pytest.mark.parametrize("dtype", DTYPES)
def test_views_and_threads(kernels: OpsIn, dtype: torch.dtype) -> None:
    expected, state, _ = one_piece(dtype, reference.causal_conv)
    windows = []
    for threads in (1, 2, 5):
        torch.set_num_threads(threads)
        out, kept, window = one_piece(dtype, kernels(dtype).causal_conv)
        assert torch.equal(out, expected)
        assert same(kept, state)
        windows.append(window)
    assert all(same(window, windows[0]) for window in windows)
    assert windows[0][0].isnan().all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_silu_of_views_on_any_threads(kernels: OpsIn, dtype: torch.dtype) -> None:
    plain, state, window = one_piece(dtype, kernels(dtype).causal_conv)
    truth = plain.double() * torch.sigmoid(plain.double())  # of the rounded values
    for threads in (1, 2, 5):
        torch.set_num_threads(threads)
        out, kept, last = one_piece(dtype, partial(kernels(dtype).causal_conv, silu=True))
        assert out.dtype == torch.float32
        assert out.is_contiguous()
        assert torch.equal(out, kernels(dtype).silu(plain.float()))
        assert same(kept, state)
        assert same(last, window)
    torch.testing.assert_close(out.double(), truth, rtol=1e-6, atol=1e-7)
    expected, *_ = one_piece(dtype, partial(reference.causal_conv, silu=True))
    assert expected.dtype == torch.float32
    torch.testing.assert_close(out, expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("dtype", DTYPES)
def test_values_that_are_not_finite_reach_their_channels_next_rows_alone(kernels: OpsIn, dtype: torch.dtype) -> None:
    def run(value: float) -> torch.Tensor:
        x = pick((40, 50), seeded(2), dtype)
        x[10, 7] = x[25, 49] = value
        state, window = torch.zeros(1, 3, 50, dtype=dtype), torch.full((2, 67, 50), NAN, dtype=dtype)
        pieces = [Rows(0, 20, [0] * 3, 0, 0), Rows(0, 20, [0] * 3, 0, 1)]
        weight = pick((50, 4), seeded(3), dtype)
        return kernels(dtype).causal_conv(x, weight, None, state, window, ForwardBatch.pack(pieces, []))

    plain, reached = run(0.5), torch.zeros(40, 50, dtype=torch.bool)
    reached[10:14, 7] = reached[25:29, 49] = True
    for value in (NAN, float("inf")):
        out = run(value)
        assert torch.equal(out.isfinite(), ~reached)
        assert torch.equal(out[~reached], plain[~reached])


def test_no_rows(kernels: OpsIn) -> None:
    state, window = torch.zeros(1, 3, 8), torch.full((1, 67, 8), NAN)
    batch = ForwardBatch.pack([Rows(5, 5, [0], 0, 0)], [])
    for silu in (False, True):
        run = kernels(torch.float32).causal_conv
        assert run(torch.ones(0, 8), torch.ones(8, 4), None, state, window, batch, silu).shape == (0, 8)
    assert window.isnan().all()


def test_buffers_of_another_dtype_or_order_are_refused(kernels: OpsIn) -> None:
    x, batch, run = torch.ones(1, 8), ForwardBatch.pack([Rows(0, 1, [0])], []), kernels(torch.float32).causal_conv
    state, window = torch.zeros(1, 3, 8), torch.zeros(1, 67, 8)
    for changed in ((state.bfloat16(), window), (state, window.double()), (state, torch.zeros(1, 8, 67).mT)):
        with pytest.raises(AssertionError):
            run(x, torch.ones(8, 4), None, *changed, batch)
