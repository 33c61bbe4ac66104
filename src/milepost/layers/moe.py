"""Feed-forward layers of many experts, of which each row meets a few."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from milepost.errors import ModelError
from milepost.layers.linear import Linear
from milepost.layers.mlp import GatedMLP
from milepost.ops import Ops

MAX_EXPERTS = 1 << 14


@dataclass(frozen=True)
class MoEShape:
    """Sizes of one layer: each row meets `num_chosen` of `num_experts` experts, of `inner_size` each.

    `normalised`: the weights of a row's experts sum to 1. `shared_size`: of an expert that every row meets, through a
    gate of its own.
    """

    hidden_size: int
    num_experts: int
    num_chosen: int
    inner_size: int
    shared_size: int
    normalised: bool = True

    def __post_init__(self) -> None:
        if not 0 < self.num_chosen <= self.num_experts <= MAX_EXPERTS:
            raise ModelError(
                f"{self.num_chosen} experts of {self.num_experts} for each token are not possible",
                "the model's config is damaged, or of a model that this version does not know",
            )


class Experts(nn.Module):
    """`gate_up_proj` [experts, 2 * inner, size], gates first; `down_proj` [experts, size, inner]; SwiGLU each."""

    def __init__(self, size: int, inner_size: int, num_experts: int, ops: Ops) -> None:
        super().__init__()
        self.gate_up_proj = nn.Parameter(torch.empty(num_experts, 2 * inner_size, size), requires_grad=False)
        self.down_proj = nn.Parameter(torch.empty(num_experts, size, inner_size), requires_grad=False)
        self.ops = ops

    def forward(self, x: torch.Tensor, expert_ids: torch.Tensor, expert_weights: torch.Tensor) -> torch.Tensor:
        """x [rows, size]; each row's experts and their weights, both [rows, chosen]."""
        return self.ops.moe_mlp(x, expert_ids, expert_weights, self.gate_up_proj, self.down_proj)


class SharedExpertMoE(nn.Module):
    """The experts that the router `gate` chooses, and one for all rows: sigmoid(gate) * expert."""

    def __init__(self, shape: MoEShape, ops: Ops) -> None:
        super().__init__()
        self.shape, self.ops = shape, ops
        self.gate = Linear(shape.hidden_size, shape.num_experts, ops)
        self.experts = Experts(shape.hidden_size, shape.inner_size, shape.num_experts, ops)
        self.shared_expert = GatedMLP(shape.hidden_size, shape.shared_size, ops)
        self.shared_expert_gate = Linear(shape.hidden_size, 1, ops)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [rows, size]; returns the same shape."""
        expert_ids, expert_weights = self.ops.route(self.gate(x), self.shape.num_chosen, self.shape.normalised)
        chosen = self.experts(x, expert_ids, expert_weights)
        return chosen + self.ops.sigmoid_mul(self.shared_expert_gate(x), self.shared_expert(x))
