"""Routing and experts against the torch reference, and the independence of rows that share experts."""

import pytest
import torch
from kernel_sets import OpsIn

from milepost.ops import torch as reference

DTYPES = [torch.float32, torch.bfloat16]


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("among_chosen", [True, False])
@pytest.mark.parametrize(("num_rows", "num_experts", "num_chosen"), [(0, 4, 2), (1, 1, 1), (9, 5, 5), (30, 67, 9)])
def test_route(
    kernels: OpsIn, num_rows: int, num_experts: int, num_chosen: int, among_chosen: bool, dtype: torch.dtype
) -> None:
    logits = (drawn(num_rows, num_experts) * 3).to(dtype)
    route = kernels(dtype).route
    ids, weights = route(logits, num_chosen, among_chosen)
    expected_ids, expected_weights = reference.route(logits, num_chosen, among_chosen)
    assert torch.equal(ids, expected_ids)
    torch.testing.assert_close(weights, expected_weights, rtol=1e-6, atol=0)
    alone = [route(row[None], num_chosen, among_chosen) for row in logits]
    if alone:
        assert torch.equal(torch.cat([one[0] for one in alone]), ids)
        assert torch.equal(torch.cat([one[1] for one in alone]), weights)


@pytest.mark.parametrize("dtype", DTYPES)
def test_ties_go_to_the_lower_expert_and_nan_stays_in_its_row(kernels: OpsIn, dtype: torch.dtype) -> None:
    logits = (drawn(20, 300) * 2).round().to(dtype)
    logits[3, 7] = float("nan")
    ids, weights = kernels(dtype).route(logits, 100, True)
    for place, (row, chosen) in enumerate(zip(logits.tolist(), ids.tolist(), strict=True)):
        if place != 3:
            assert chosen == sorted(range(300), key=lambda e: (-row[e], e))[:100]
    assert sorted(set(ids[3].tolist())) == sorted(ids[3].tolist())
    assert weights[[i for i in range(20) if i != 3]].isfinite().all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("num_rows", "num_experts", "num_chosen", "size", "inner"),
    [(0, 4, 2, 24, 12), (1, 1, 1, 24, 12), (1, 8, 3, 33, 17), (33, 8, 3, 130, 40), (150, 2, 1, 24, 12)],
)
def test_moe_mlp(
    kernels: OpsIn, num_rows: int, num_experts: int, num_chosen: int, size: int, inner: int, dtype: torch.dtype
) -> None:
    ops = kernels(dtype)
    ids, weights = reference.route(drawn(num_rows, num_experts, seed=1), num_chosen, False)
    x, gate_up, down = (
        drawn(*shape, seed=sum(shape)).to(dtype)
        for shape in ((num_rows, size), (num_experts, 2 * inner, size), (num_experts, size, inner))
    )
    packed = (ops.pack(gate_up), ops.pack(down))
    out = ops.moe_mlp(x, ids, weights, *packed)
    assert (out.shape, out.dtype) == (x.shape, dtype)
    expected = reference.moe_mlp(x.double(), ids, weights, gate_up.double(), down.double())
    assert (out.double() - expected).norm() <= expected.norm() * (1e-5 if dtype == torch.float32 else 2e-2)
    assert torch.equal(ops.moe_mlp(x, ids, weights, gate_up, down), out)
    assert torch.equal(ops.moe_mlp(x, ids.flip(-1), weights.flip(-1), *packed), out)
    alone = [ops.moe_mlp(x[i : i + 1], ids[i : i + 1], weights[i : i + 1], *packed) for i in range(num_rows)]
    assert torch.equal(torch.cat([out[:0], *alone]), out)
    before = torch.get_num_threads()
    try:
        for threads in (2, 5):
            torch.set_num_threads(threads)
            assert torch.equal(ops.moe_mlp(x, ids, weights, *packed), out)
    finally:
        torch.set_num_threads(before)
