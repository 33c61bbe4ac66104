"""The torch reference: attention against a plain softmax, and the ops that claim independent rows."""

from functools import partial

import pytest
import torch

from milepost.ops import ForwardBatch, KVLayer, Rows
from milepost.ops import torch as reference
from milepost.ops.torch import attention

DTYPES = [torch.float32, torch.bfloat16]


def textbook(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, start: int, window: int | None) -> torch.Tensor:
    """One sequence, one row and head at a time, in float64."""
    out = torch.empty_like(q, dtype=torch.float64)
    group = q.shape[1] // k.shape[1]
    for r in range(q.shape[0]):
        seen = slice(0 if window is None else max(0, start + r - window + 1), start + r + 1)
        for h in range(q.shape[1]):
            scores = k[seen, h // group].double() @ q[r, h].double() * 0.3
            out[r, h] = scores.softmax(0) @ v[seen, h // group].double()
    return out


@pytest.mark.parametrize("window", [None, 1, 7, 40])
@pytest.mark.parametrize("tile", [4, 512])
def test_attention_over_scattered_blocks(window: int | None, tile: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "ROW_TILE", tile)
    generator = torch.Generator().manual_seed(0)
    kv = KVLayer(*(torch.full((40, 16, 2, 8), float("nan")) for _ in range(2)))  # what is not written must not be read
    shuffled = torch.randperm(40, generator=generator).tolist()
    lengths = [(0, 33), (0, 1), (20, 21), (16, 32), (5, 70)]  # rows computed before, rows after this step
    rows, truth, packed = [], [], []
    for start, end in lengths:
        table = [shuffled.pop() for _ in range(-(-end // 16))]
        k, v, q = (torch.randn(end, heads, 8, generator=generator) for heads in (2, 2, 4))
        known = ForwardBatch.pack([Rows(0, start, table)], [kv])
        reference.store_kv(k[:start], v[:start], kv, known.slot_mapping)
        rows.append(Rows(start, end, table))
        packed.append((q[start:], k[start:], v[start:]))
        truth.append(textbook(q[start:], k, v, start, window))
    batch = ForwardBatch.pack(rows, [kv])
    q, k, v = (torch.cat(parts) for parts in zip(*packed, strict=True))
    reference.store_kv(k, v, kv, batch.slot_mapping)
    out = reference.paged_attention(q, kv, batch, scale=0.3, window=window)
    torch.testing.assert_close(out, torch.cat(truth).float(), rtol=1e-5, atol=1e-5)


def test_an_empty_batch_is_no_work() -> None:
    kv = KVLayer(torch.zeros(1, 16, 2, 8), torch.zeros(1, 16, 2, 8))
    batch = ForwardBatch.pack([], [kv])
    nothing = torch.zeros(0, 2, 8)
    reference.store_kv(nothing, nothing, kv, batch.slot_mapping)
    assert reference.paged_attention(nothing, kv, batch, scale=1.0).shape == (0, 2, 8)


def test_rotate_half_leaves_the_rest_of_a_head_alone() -> None:
    x = torch.randn(3, 2, 10)
    angles = torch.rand(3, 3)
    out = reference.rotate_half(x, angles.cos(), angles.sin())
    assert torch.equal(out[..., 6:], x[..., 6:])
    turned = torch.complex(x[..., :3], x[..., 3:6]) * torch.polar(torch.ones(3, 1, 3), angles[:, None])
    torch.testing.assert_close(out[..., :6], torch.cat([turned.real, turned.imag], -1))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_rows", [2, 3, 7, 33, 100])
def test_ops_that_claim_independent_rows_have_them(num_rows: int, dtype: torch.dtype) -> None:
    # embed, pack, store_kv and wide copy
    compared = {"add", "mul", "offset_rms_norm", "rms_norm", "rotate_half", "soft_cap"}
    assert compared | {"embed", "pack", "store_kv", "wide"} == reference.ROW_INDEPENDENT
    generator = torch.Generator().manual_seed(num_rows)
    for size in (8, 17, 100, 576, 4097):
        x, weight = (torch.randn(shape, generator=generator).to(dtype) for shape in ((num_rows, size), (size,)))
        for norm in (reference.rms_norm, reference.offset_rms_norm):
            alone = torch.cat([norm(row[None].clone(), weight, 1e-5) for row in x])
            assert torch.equal(alone, norm(x, weight, 1e-5))
        y = torch.randn(num_rows, size, generator=generator).to(dtype)
        for pair in (partial(reference.add, factor=0.3), reference.mul):
            alone = torch.cat([pair(row[None].clone(), other[None].clone()) for row, other in zip(x, y, strict=True)])
            assert torch.equal(alone, pair(x, y))
        alone = torch.cat([reference.soft_cap(row[None].clone(), 2.0) for row in x])
        assert torch.equal(alone, reference.soft_cap(x, 2.0))
    x, angles = torch.randn(num_rows, 3, 80, generator=generator).to(dtype), torch.rand(num_rows, 40)
    alone = torch.cat(
        [
            reference.rotate_half(x[i : i + 1].clone(), angles[i : i + 1].cos(), angles[i : i + 1].sin())
            for i in range(num_rows)
        ]
    )
    assert torch.equal(alone, reference.rotate_half(x, angles.cos(), angles.sin()))
