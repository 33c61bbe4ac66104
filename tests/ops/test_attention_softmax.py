"""Attention with sinks and a soft cap against a textbook softmax in float64."""

from __future__ import annotations

import pytest
import torch

from milepost.ops import ForwardBatch, KVLayer, Rows
from milepost.ops import torch as reference
from milepost.ops.torch import attention

PIECES = [(0, 40), (37, 38), (16, 48), (0, 1)]  # rows computed before, rows after this step


def textbook(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    start: int,
    window: int | None,
    cap: float | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """One sequence: exp(score) / (exp(sink) + sum of exp(score)), one row and head at a time."""
    q, k, v = q.double(), k.double(), v.double()
    out = torch.zeros_like(q)
    for r in range(q.shape[0]):
        for h in range(q.shape[1]):
            shared = h // (q.shape[1] // k.shape[1])
            seen = slice(0 if window is None else max(0, start + r - window + 1), start + r + 1)
            scores = k[seen, shared] @ q[r, h] * 0.7
            weights = (scores if cap is None else cap * torch.tanh(scores / cap)).exp()
            sink = 0.0 if sinks is None else sinks[h].double().exp()
            out[r, h] = weights @ v[seen, shared] / (weights.sum() + sink)
    return out


def attend(
    dtype: torch.dtype, window: int | None, cap: float | None, sinks: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Outputs of PIECES packed in one batch, and the truth."""
    generator = torch.Generator().manual_seed(0)
    kv = KVLayer(*(torch.full((20, 16, 2, 8), float("nan"), dtype=dtype) for _ in range(2)))
    shuffled = torch.randperm(20, generator=generator).tolist()
    rows, queries, truth = [], [], []
    for start, end in PIECES:
        table = [shuffled.pop() for _ in range(-(-end // 16))]
        k, v, q = (torch.randn(end, heads, 8, generator=generator).to(dtype) for heads in (2, 2, 6))
        reference.store_kv(k, v, kv, ForwardBatch.pack([Rows(0, end, table)], []).slot_mapping)
        rows.append(Rows(start, end, table))
        queries.append(q[start:])
        truth.append(textbook(q[start:], k, v, start, window, cap, sinks))
    batch = ForwardBatch.pack(rows, [kv])
    out = reference.paged_attention(torch.cat(queries), kv, batch, scale=0.7, window=window, soft_cap=cap, sinks=sinks)
    return out, torch.cat(truth)


SINKS = torch.tensor([-20.0, -1.0, 0.0, 1.0, 3.0, 12.0])


@pytest.mark.parametrize("window", [None, 1, 7])
@pytest.mark.parametrize("cap", [None, 1.5, 50.0])
@pytest.mark.parametrize("sinks", [None, SINKS], ids=["no sinks", "sinks"])
def test_sinks_and_soft_cap(window: int | None, cap: float | None, sinks: torch.Tensor | None) -> None:
    out, truth = attend(torch.float32, window, cap, sinks)
    torch.testing.assert_close(out.double(), truth, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("tile", [1, 12, 512])
def test_rows_are_cut_into_tiles(tile: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "ROW_TILE", tile)
    out, truth = attend(torch.float32, None, 2.0, SINKS)
    torch.testing.assert_close(out.double(), truth, rtol=1e-5, atol=1e-6)


def test_bfloat16_is_rounded_once() -> None:
    out, truth = attend(torch.bfloat16, None, 2.0, SINKS.bfloat16())
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.double(), truth, rtol=2**-8, atol=1e-6)


def test_a_sink_takes_its_share() -> None:
    plain, capped, sunk = (
        attend(torch.float32, None, cap, sinks)[0] for cap, sinks in ((None, None), (1.5, None), (None, SINKS))
    )
    assert (plain - capped).abs().max() > 0.1
    assert (plain[:, 5] - sunk[:, 5]).abs().max() > 0.1
    torch.testing.assert_close(plain[:, 0], sunk[:, 0], rtol=1e-5, atol=1e-5)  # exp(-20) beside the rest


def test_an_empty_batch_is_no_work() -> None:
    kv = KVLayer(torch.zeros(1, 16, 2, 8), torch.zeros(1, 16, 2, 8))
    nothing = torch.zeros(0, 6, 8)
    out = reference.paged_attention(nothing, kv, ForwardBatch.pack([], [kv]), scale=1.0, soft_cap=2.0, sinks=SINKS)
    assert out.shape == (0, 6, 8)
