"""Mixtures of experts: which experts a row goes to, and what they make of it."""

from __future__ import annotations

import torch

from milepost.ops.torch.activation import silu_mul
from milepost.ops.torch.linear import linear


def route(logits: torch.Tensor, num_chosen: int, among_chosen: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """The `num_chosen` experts of each row with the largest logits [rows, E], ties to the lower expert (Shazeer et al.,
    2017), and their weights: the softmax over all experts, or over the chosen ones alone. In fp32.

    Returns ids int64 and weights fp32, each [rows, num_chosen], the largest first.
    """
    wide = logits.float()
    ids = wide.sort(dim=-1, descending=True, stable=True).indices[:, :num_chosen]
    if among_chosen:
        return ids, wide.gather(-1, ids).softmax(-1)
    return ids, wide.softmax(-1).gather(-1, ids)


def moe_mlp(
    x: torch.Tensor,
    expert_ids: torch.Tensor,
    expert_weights: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
) -> torch.Tensor:
    """The sum over a row's experts e of weight_e down_e (silu(gate_e x) * up_e x), every row to all of its experts.

    x [rows, H]; expert_ids int64 [rows, k], each once in a row; expert_weights fp32 [rows, k]; gate_up [E, 2I, H], the
    gates' rows first; down [E, H, I]. A row's experts are summed in fp32 in ascending order of their ids, whatever
    their ranks and the other rows, and rounded once: [rows, H] in x's dtype.
    """
    out = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    for expert in sorted(set(expert_ids.flatten().tolist())):
        rows, ranks = torch.where(expert_ids == expert)
        gate, up = linear(x[rows], gate_up[expert]).chunk(2, dim=-1)
        made = linear(silu_mul(gate, up), down[expert])
        out[rows] += made.float() * expert_weights[rows, ranks, None]
    return out.to(x.dtype)
