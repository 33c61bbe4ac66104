"""The attention kernels against the torch reference, and their independence of batch, cuts, threads and old memory."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import torch
from kernel_sets import OpsIn

from milepost.errors import ModelError
from milepost.ops import ForwardBatch, KVLayer, Ops, Rows
from milepost.ops import torch as reference

DTYPES = [torch.float32, torch.bfloat16]
NAN = float("nan")
SPLIT = 512  # tokens, as in csrc/attention_jobs.h


@dataclass(frozen=True)
class Heads:
    """Sizes and kind of one attention."""

    num: int = 4
    num_kv: int = 2
    dim: int = 24
    window: int | None = None
    soft_cap: float | None = None
    sinks: bool = False

    def attend(self, op: object, q: torch.Tensor, kv: KVLayer, batch: ForwardBatch) -> torch.Tensor:
        sinks = torch.linspace(-2, 6, self.num).bfloat16() if self.sinks else None
        scale = self.dim**-0.5
        return op(q, kv, batch, scale=scale, window=self.window, soft_cap=self.soft_cap, sinks=sinks)  # type: ignore[operator]


class Sequences:
    """Random sequences whose KV lies in shuffled blocks of a pool; all else there is NaN."""

    def __init__(self, lengths: Sequence[int], heads: Heads, dtype: torch.dtype, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.heads, self.lengths = heads, lengths
        num_blocks = sum(-(-length // 16) for length in lengths) + 3
        shape = (num_blocks, 16, heads.num_kv, heads.dim)
        self.kv = KVLayer(*(torch.full(shape, NAN, dtype=dtype) for _ in range(2)))
        free = torch.randperm(num_blocks - 1, generator=generator).tolist()
        free.append(num_blocks - 1)  # used first, so that reads beyond a head's end may leave the pool
        self.tables = [[free.pop() for _ in range(-(-length // 16))] for length in lengths]
        self.q = []
        for i, length in enumerate(lengths):
            q, k, v = (
                torch.randn(length, num, heads.dim, generator=generator).to(dtype)
                for num in (heads.num, heads.num_kv, heads.num_kv)
            )
            self.q.append(q)
            reference.store_kv(k, v, self.kv, self.batch([(i, 0, length)]).slot_mapping)

    def batch(self, pieces: Sequence[tuple[int, int, int]]) -> ForwardBatch:
        """Of pieces (sequence, start, end)."""
        rows = [Rows(start, end, self.tables[i][: -(-end // 16)]) for i, start, end in pieces]
        return ForwardBatch.pack(rows, [self.kv])

    def run(self, op: object, pieces: Sequence[tuple[int, int, int]]) -> list[torch.Tensor]:
        """What each piece's rows attend to."""
        q = torch.cat([self.q[i][start:end] for i, start, end in pieces])
        out = self.heads.attend(op, q, self.kv, self.batch(pieces))
        assert (out.shape, out.dtype) == (q.shape, q.dtype)
        return list(out.split([end - start for _, start, end in pieces]))

    def whole(self, op: object) -> list[torch.Tensor]:
        return self.run(op, [(i, 0, length) for i, length in enumerate(self.lengths)])

    def truth(self) -> list[torch.Tensor]:
        """The reference in fp32, of the stored values."""
        return self._reference(self.kv.v.float())

    def sizes(self) -> list[torch.Tensor]:
        """The same of the values without their signs: an error of a part of each weight makes at most this part."""
        return self._reference(self.kv.v.float().abs())

    def _reference(self, values: torch.Tensor) -> list[torch.Tensor]:
        kv = KVLayer(self.kv.k.float(), values)
        pieces = [(i, 0, length) for i, length in enumerate(self.lengths)]
        out = self.heads.attend(reference.paged_attention, torch.cat(self.q).float(), kv, self.batch(pieces))
        return list(out.split(list(self.lengths)))


def check_against_the_reference(ops: Ops, lengths: Sequence[int], heads: Heads, dtype: torch.dtype, seed: int) -> None:
    sequences = Sequences(lengths, heads, dtype, seed)
    check(sequences.whole(ops.paged_attention), sequences)


def check(outs: Sequence[torch.Tensor], sequences: Sequences, atol: float = 1e-5) -> None:
    """Within what rounding makes. bf16: at most 2^-8 of each weight, then of the result."""
    for out, expected, sizes in zip(outs, sequences.truth(), sequences.sizes(), strict=True):
        weights, result = (0.0, 2e-5) if out.dtype == torch.float32 else (1.01 * 2**-8, 2**-8)
        wrong = (out.float() - expected).abs() > weights * sizes + result * expected.abs() + atol
        assert not wrong.any()
        assert out.isfinite().all()


SHAPES = [
    Heads(),
    Heads(3, 3, 7),
    Heads(9, 3, 64, window=1),
    Heads(4, 1, 40, window=7, soft_cap=1.5),
    Heads(6, 2, 80, window=70, sinks=True),
    Heads(8, 2, 256, soft_cap=50.0, sinks=True),
    Heads(5, 1, 130, window=40),
    Heads(260, 1, 8),  # more heads on one head of KV than a job takes at once
    Heads(2, 1, 512),
    Heads(1, 1, 1),
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads", SHAPES, ids=str)
def test_against_the_reference(kernels: OpsIn, heads: Heads, dtype: torch.dtype) -> None:
    check_against_the_reference(kernels(dtype), [1, 70, 17, 64, 133], heads, dtype, seed=1)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", [None, 3, 100, 512, 600])
def test_contexts_of_several_splits(kernels: OpsIn, window: int | None, dtype: torch.dtype) -> None:
    check_against_the_reference(kernels(dtype), [SPLIT, SPLIT + 1, 2 * SPLIT + 70], Heads(2, 1, 16, window), dtype, 2)


CUTS = [
    [],
    [1, 2, 16, 17, 33, 63, 64, 65, 130, 512, 513, 540],
    [511, 512, 575, 576, 640],
    [5, 505, 506, 530, 531, 700],
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "heads",
    [Heads(4, 2, 64), Heads(4, 4, 40, 7), Heads(6, 1, 24, 600, 1.5, True), Heads(2, 1, 130, 65), Heads(260, 1, 8)],
    ids=str,
)
def test_a_sequence_has_the_same_bits_however_it_is_cut(kernels: OpsIn, heads: Heads, dtype: torch.dtype) -> None:
    """In pieces of any size and one row at a time, among other sequences, on several threads."""
    length = 1100 if heads.num < 100 else 140
    sequences = Sequences([length, 37], heads, dtype)
    op = kernels(dtype).paged_attention
    whole = sequences.run(op, [(0, 0, length)])[0]
    assert whole.isfinite().all()
    for cuts in CUTS:
        ends = [0, *(cut for cut in cuts if cut < length), length]
        pieces = [(0, start, end) for start, end in itertools.pairwise(ends)]
        assert torch.equal(torch.cat([sequences.run(op, [piece])[0] for piece in pieces]), whole)
        # all pieces in one batch, between rows of another sequence
        mixed = [part for piece in pieces for part in ((1, 5, 9), piece)]
        assert torch.equal(torch.cat(sequences.run(op, mixed)[1::2]), whole)
    rows = [row for row in (*range(0, 150, 7), *range(490, 600, 3), *range(1000, 1100, 11)) if row < length]
    alone = [sequences.run(op, [(0, row, row + 1)])[0] for row in rows]
    assert torch.equal(torch.cat(alone), whole[rows])
    together = sequences.run(op, [(0, row, row + 1) for row in rows])
    assert torch.equal(torch.cat(together), whole[rows])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads", SHAPES, ids=str)
def test_memory_that_a_call_before_has_left_is_not_read(kernels: OpsIn, heads: Heads, dtype: torch.dtype) -> None:
    """All that the kernel works in is full of NaN: on the stack, and in the memory that torch hands out again."""
    op = kernels(dtype).paged_attention
    lengths = [19, 5, 1] if heads.dim > 100 else [530, 19, 5, 1]
    sequences = Sequences(lengths, heads, dtype)
    pieces = [(0, lengths[0] - 18, lengths[0]), *((i, 0, length) for i, length in enumerate(lengths))]
    expected = torch.cat(sequences.run(op, pieces))
    poison = Sequences([600], Heads(2, 1, 512), dtype)
    for part in (poison.q[0], poison.kv.k, poison.kv.v):
        part[:] = NAN
    assert torch.cat(poison.run(op, [(0, 100, 300), (0, 590, 600)])).isnan().all()
    assert torch.equal(torch.cat(sequences.run(op, pieces)), expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_threads_change_no_bit(kernels: OpsIn, dtype: torch.dtype) -> None:
    sequences = Sequences([700, 3, 90], Heads(6, 3, 24, sinks=True), dtype)
    pieces = [(0, 20, 700), (1, 0, 3), (2, 89, 90), (0, 690, 700)]
    op, before, outs = kernels(dtype).paged_attention, torch.get_num_threads(), []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            outs.append(torch.cat(sequences.run(op, pieces)))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(outs[0], outs[1])
    assert torch.equal(outs[0], outs[2])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value", [NAN, float("inf"), -float("inf")])
@pytest.mark.parametrize("spoiled", ["q", "k", "v"])
def test_values_that_are_not_finite_stay_with_the_rows_that_see_them(
    kernels: OpsIn, spoiled: str, value: float, dtype: torch.dtype
) -> None:
    heads, place = Heads(4, 2, 24, window=50), 70
    clean, sequences = (Sequences([150, 40], heads, dtype) for _ in range(2))
    op = kernels(dtype).paged_attention
    expected, other = clean.whole(op)
    if spoiled == "q":
        sequences.q[0][place, 0] = value
    else:
        block = sequences.tables[0][place // 16]
        getattr(sequences.kv, spoiled)[block, place % 16, 0, 3] = value
    out, out_other = sequences.whole(op)
    assert torch.equal(out_other, other)
    touched = [place] if spoiled == "q" else list(range(place, place + 50))
    mine = 1 if spoiled == "q" else 2  # heads that share what was spoiled
    rest = [row for row in range(150) if row not in touched]
    assert torch.equal(out[rest], expected[rest])
    assert torch.equal(out[:, mine:], expected[:, mine:])
    assert not torch.equal(out[touched, :mine], expected[touched, :mine])
    if spoiled == "q" or value != value:
        assert out[touched, :mine].isnan().any()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("spoiled", [0, 63, 64, 100, 130, 570])
def test_values_that_are_not_finite_are_not_met_by_rows_before_them(
    kernels: OpsIn, spoiled: int, dtype: torch.dtype
) -> None:
    """Rows of the same tile, computed with a token of theirs that is NaN and one alone that has never been written."""
    heads, length = Heads(6, 2, 72), 600
    clean, sequences = (Sequences([length], heads, dtype) for _ in range(2))
    sequences.kv.v[sequences.tables[0][spoiled // 16], spoiled % 16] = NAN
    op = kernels(dtype).paged_attention
    out = sequences.whole(op)[0]
    assert torch.equal(out[:spoiled], clean.whole(op)[0][:spoiled])
    assert out[spoiled:].isnan().all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_sign_of_zero_is_a_rows_own(kernels: OpsIn, dtype: torch.dtype) -> None:
    """Sums that vanish, with their sign, between splits, between tiles, and before what the row does not see is met."""
    length, row, tiny = 704, 640, -1.2e-38
    sequences = Sequences([length], Heads(1, 1, 64), dtype)
    sequences.q[0][:] = 1.0
    keys, values = torch.zeros(length, 1, 64, dtype=dtype), torch.zeros(length, 1, 64, dtype=dtype)
    keys[576], keys[row:] = 1.0, -0.5
    values[0], values[SPLIT], values[row], values[row + 1 :] = tiny, tiny, tiny, 1.0
    reference.store_kv(keys, values, sequences.kv, sequences.batch([(0, 0, length)]).slot_mapping)
    op = kernels(dtype).paged_attention
    whole, alone = sequences.whole(op)[0][row], sequences.run(op, [(0, row, row + 1)])[0][0]
    bits = torch.int32 if dtype == torch.float32 else torch.int16
    assert torch.equal(alone.view(bits), whole.view(bits))
    assert not alone.any()


@pytest.mark.parametrize("dtype", DTYPES)
def test_scores_of_minus_infinity_weigh_nothing(kernels: OpsIn, dtype: torch.dtype) -> None:
    """A row's first tile holds nothing else; then come scores that are finite."""
    heads, length = Heads(1, 1, 8), 100
    sequences = Sequences([length], heads, dtype)
    sequences.q[0][:] = 1.0
    for token in range(70):
        sequences.kv.k[sequences.tables[0][token // 16], token % 16] = -float("inf")
    out, expected = sequences.whole(kernels(dtype).paged_attention)[0], sequences.truth()[0]
    assert out[:70].isnan().all()  # nothing to weigh, as in the reference
    torch.testing.assert_close(out[70:].float(), expected[70:], rtol=2**-8, atol=2**-7)


@pytest.mark.parametrize("dtype", DTYPES)
def test_scores_far_apart_do_not_overflow(kernels: OpsIn, dtype: torch.dtype) -> None:
    sequences = Sequences([600], Heads(2, 1, 16), dtype)
    sequences.q[0] *= 1000
    check(sequences.whole(kernels(dtype).paged_attention), sequences, atol=2e-3)


@pytest.mark.parametrize("dtype", DTYPES)
def test_queries_in_wider_rows(kernels: OpsIn, dtype: torch.dtype) -> None:
    sequences = Sequences([40], Heads(4, 2, 24), dtype)
    op, expected = kernels(dtype).paged_attention, sequences.whole(kernels(dtype).paged_attention)[0]
    q = sequences.q[0]
    doubled, spread = torch.full((40, 4, 48), NAN, dtype=dtype), torch.full((40, 4, 24, 2), NAN, dtype=dtype)
    doubled[..., :24], spread[..., 0] = q, q
    for view in (doubled[..., :24], spread[..., 0], q.transpose(0, 1).contiguous().transpose(0, 1)):
        sequences.q[0] = view
        batch = sequences.batch([(0, 0, 40)])
        assert torch.equal(sequences.heads.attend(op, view, sequences.kv, batch), expected)


def test_no_rows(kernels: OpsIn) -> None:
    sequences = Sequences([20], Heads(), torch.float32)
    op = kernels(torch.float32).paged_attention
    nothing = torch.zeros(0, 4, 24)
    assert sequences.heads.attend(op, nothing, sequences.kv, sequences.batch([])).shape == (0, 4, 24)
    assert sequences.heads.attend(op, nothing, sequences.kv, sequences.batch([(0, 20, 20)])).shape == (0, 4, 24)
    parts = sequences.run(op, [(0, 7, 7), (0, 0, 20), (0, 20, 20)])
    assert torch.equal(parts[1], sequences.whole(op)[0])


def test_heads_that_are_too_large_are_refused(kernels: OpsIn) -> None:
    sequences = Sequences([2], Heads(1, 1, 513), torch.float32)
    with pytest.raises(ModelError, match="513"):
        sequences.whole(kernels(torch.float32).paged_attention)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [0, 1, 63, 200])
def test_kv_is_stored_and_nothing_else_touched(kernels: OpsIn, rows: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(rows)
    slots = torch.randperm(16 * 16, generator=generator)[:rows]
    wide = torch.randn(rows, 4, 3, 7, generator=generator).to(dtype)
    pools = [KVLayer(*(torch.full((16, 16, 3, 7), NAN, dtype=dtype) for _ in range(2))) for _ in range(3)]
    k, v = wide[:, 1], wide[:, 3]
    reference.store_kv(k, v, pools[0], slots)
    kernels(dtype).store_kv(k, v, pools[1], slots)
    kernels(dtype).store_kv(k.transpose(1, 2).contiguous().transpose(1, 2), v, pools[2], slots)
    for pool in pools[1:]:
        for out, expected in ((pool.k, pools[0].k), (pool.v, pools[0].v)):
            assert torch.equal(out.isnan(), expected.isnan())
            assert torch.equal(out.nan_to_num(), expected.nan_to_num())


@pytest.mark.full
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("seed", range(40))
def test_random_shapes(kernels: OpsIn, seed: int, dtype: torch.dtype) -> None:
    """Against the reference, and cut at random places."""
    generator = torch.Generator().manual_seed(seed)

    def below(limit: int) -> int:
        return int(torch.randint(limit, (1,), generator=generator))

    num_kv, group, dim = 1 + below(4), 1 + below(9), 1 + below(200)
    window = 1 + below(900) if below(2) else None
    heads = Heads(num_kv * group, num_kv, dim, window, 0.5 + below(30) if below(2) else None, bool(below(2)))
    lengths = [1 + below(900) for _ in range(1 + below(3))]
    check_against_the_reference(kernels(dtype), lengths, heads, dtype, seed)
    sequences = Sequences(lengths, heads, dtype, seed)
    op = kernels(dtype).paged_attention
    whole = sequences.whole(op)
    for _ in range(4):
        cuts = [sorted({0, length, *(below(length) for _ in range(below(8)))}) for length in lengths]
        pieces = [(i, a, b) for i, ends in enumerate(cuts) for a, b in itertools.pairwise(ends)]
        order = torch.randperm(len(pieces), generator=generator).tolist()
        for j, out in zip(order, sequences.run(op, [pieces[j] for j in order]), strict=True):
            i, start, end = pieces[j]
            assert torch.equal(out, whole[i][start:end])
