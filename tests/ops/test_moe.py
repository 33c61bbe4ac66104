"""Routing and experts of the torch reference against a row-by-row computation in float64."""

import pytest
import torch

from milepost.ops import torch as reference


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("among_chosen", [True, False])
@pytest.mark.parametrize(("num_rows", "num_experts", "num_chosen"), [(0, 4, 2), (1, 1, 1), (9, 5, 5), (30, 60, 4)])
def test_route(num_rows: int, num_experts: int, num_chosen: int, among_chosen: bool) -> None:
    logits = drawn(num_rows, num_experts) * 3
    ids, weights = reference.route(logits, num_chosen, among_chosen)
    assert (ids.shape, ids.dtype) == ((num_rows, num_chosen), torch.int64)
    assert (weights.shape, weights.dtype) == ((num_rows, num_chosen), torch.float32)
    for row, chosen, found in zip(logits.double(), ids.tolist(), weights.double(), strict=True):
        assert chosen == sorted(range(num_experts), key=lambda e: -row[e].item())[:num_chosen]
        shares = row.exp() / (row[chosen] if among_chosen else row).exp().sum()
        torch.testing.assert_close(found, shares[chosen], rtol=1e-6, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_ties_go_to_the_lower_expert(dtype: torch.dtype) -> None:
    """In rows long enough for a sort that is not stable, and where rounding to bfloat16 makes most of the ties."""
    logits = (drawn(20, 300) * 2).round().to(dtype)
    ids, _ = reference.route(logits, 100, True)
    for row, chosen in zip(logits.tolist(), ids.tolist(), strict=True):
        assert chosen == sorted(range(300), key=lambda e: (-row[e], e))[:100]


def test_logits_of_any_size() -> None:
    ids, weights = reference.route(torch.tensor([[1e4, -1e4, 1e4, 0.0], [-1e30, -1e30, -1e30, -1e30]]), 2, True)
    assert ids.tolist() == [[0, 2], [0, 1]]
    assert weights.tolist() == [[0.5, 0.5], [0.5, 0.5]]


def moe(num_rows: int, num_experts: int, num_chosen: int, size: int = 24, inner: int = 12) -> tuple[torch.Tensor, ...]:
    ids, weights = reference.route(drawn(num_rows, num_experts, seed=1), num_chosen, False)
    gate_up, down = drawn(num_experts, 2 * inner, size, seed=2), drawn(num_experts, size, inner, seed=3)
    return drawn(num_rows, size, seed=4), ids, weights, gate_up, down


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("num_rows", "num_experts", "num_chosen"), [(0, 4, 2), (1, 1, 1), (1, 8, 3), (33, 8, 3)])
def test_moe_mlp(num_rows: int, num_experts: int, num_chosen: int, dtype: torch.dtype) -> None:
    x, ids, weights, gate_up, down = moe(num_rows, num_experts, num_chosen)
    x, gate_up, down = x.to(dtype), gate_up.to(dtype), down.to(dtype)
    out = reference.moe_mlp(x, ids, weights, gate_up, down)
    assert (out.shape, out.dtype) == (x.shape, dtype)
    for row, chosen, shares, found in zip(x.double(), ids, weights.double(), out.double(), strict=True):
        expected = torch.zeros_like(row)
        for expert, share in zip(chosen.tolist(), shares, strict=True):
            gate, up = (gate_up[expert].double() @ row).chunk(2)
            expected += share * (down[expert].double() @ (gate * gate.sigmoid() * up))
        assert (found - expected).norm() <= expected.norm() * (1e-5 if dtype == torch.float32 else 2e-2)


def test_the_ranks_of_a_rows_experts_do_not_matter() -> None:
    """They are summed in the order of their ids."""
    x, ids, weights, gate_up, down = moe(17, 8, 5)
    out = reference.moe_mlp(x, ids, weights, gate_up, down)
    assert torch.equal(reference.moe_mlp(x, ids.flip(-1), weights.flip(-1), gate_up, down), out)


def test_no_row_is_left_out_where_all_choose_the_same() -> None:
    x, _, _, gate_up, down = moe(64, 8, 1)
    ids, weights = torch.full((64, 1), 5), torch.ones(64, 1)
    out = reference.moe_mlp(x, ids, weights, gate_up, down)
    one_by_one = [reference.moe_mlp(x[i : i + 1], ids[:1], weights[:1], gate_up, down) for i in range(64)]
    torch.testing.assert_close(out, torch.cat(one_by_one), rtol=1e-4, atol=1e-4)


def test_what_is_not_finite_stays_with_its_row() -> None:
    x, ids, weights, gate_up, down = moe(9, 4, 2)
    expected = reference.moe_mlp(x, ids, weights, gate_up, down)
    x[3] = float("nan")
    out = reference.moe_mlp(x, ids, weights, gate_up, down)
    assert out[3].isnan().all()
    kept = [i for i in range(9) if i != 3]
    torch.testing.assert_close(out[kept], expected[kept], rtol=1e-5, atol=1e-5)
