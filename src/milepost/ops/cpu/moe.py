"""Mixtures of experts."""

from __future__ import annotations

import torch

from milepost.ops.cpu.activation import silu_mul
from milepost.ops.cpu.kernels import Kernels
from milepost.ops.cpu.linear import packed_for_now, rows_of
from milepost.ops.packed import PackedWeight


def route(lib: Kernels, logits: torch.Tensor, num_chosen: int, among_chosen: bool) -> tuple[torch.Tensor, torch.Tensor]:
    logits = logits.contiguous()
    rows, experts = logits.shape
    ids = torch.empty(rows, num_chosen, dtype=torch.int64)
    weights = torch.empty(rows, num_chosen, dtype=torch.float32)
    run = lib.typed("route", logits.dtype)
    run(logits.data_ptr(), ids.data_ptr(), weights.data_ptr(), rows, experts, num_chosen, among_chosen)
    return ids, weights


def moe_mlp(
    lib: Kernels,
    x: torch.Tensor,
    expert_ids: torch.Tensor,
    expert_weights: torch.Tensor,
    gate_up: torch.Tensor | PackedWeight,
    down: torch.Tensor | PackedWeight,
) -> torch.Tensor:
    """Rows sorted by expert, through its two matrices, and back: each row's results are added in ascending order of the
    experts, which is that of the sorted places."""
    gate_up, down = (w if isinstance(w, PackedWeight) else packed_for_now(lib, w) for w in (gate_up, down))
    rows, chosen = expert_ids.shape
    flat = expert_ids.flatten()
    order = flat.argsort(stable=True)
    starts = torch.zeros(gate_up.shape[0] + 1, dtype=torch.int64)
    torch.cumsum(torch.bincount(flat, minlength=gate_up.shape[0]), 0, out=starts[1:])
    gate, up = _grouped(lib, x[order // chosen], gate_up, starts).chunk(2, dim=-1)
    made = _grouped(lib, silu_mul(lib, gate, up), down, starts)
    places = torch.empty_like(flat)
    places[order] = torch.arange(len(flat))
    places, ranks = places.view(rows, chosen).sort(dim=1)
    weights = expert_weights.gather(1, ranks)
    out = lib.dense_like(x)
    run = lib.typed("weighted_sum", x.dtype)
    run(made.data_ptr(), places.data_ptr(), weights.data_ptr(), out.data_ptr(), rows, chosen, down.size_out)
    return out


def _grouped(lib: Kernels, x: torch.Tensor, weight: PackedWeight, starts: torch.Tensor) -> torch.Tensor:
    """Each row through the matrix of its expert."""
    x = rows_of(x)
    out = lib.empty((x.shape[0], weight.size_out), x.dtype)
    run = lib.typed("grouped_linear", x.dtype)
    run(
        x.data_ptr(),
        x.stride(0),
        weight.data.data_ptr(),
        starts.data_ptr(),
        out.data_ptr(),
        weight.shape[0],
        weight.size_in,
        weight.size_out,
    )
    return out
