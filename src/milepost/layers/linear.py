"""Linear layers and the embedding: weights under their checkpoint's names."""

from __future__ import annotations

import torch
from torch import nn

from milepost.ops import Ops, PackedWeight


class Linear(nn.Module):
    """`weight` [out, in] and, if `bias`, `bias` [out]; maps [rows, in] to [rows, out]."""

    weight: nn.Parameter | PackedWeight

    def __init__(self, size_in: int, size_out: int, ops: Ops, bias: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size_out, size_in), requires_grad=False)
        self.bias = nn.Parameter(torch.empty(size_out), requires_grad=False) if bias else None
        self.ops = ops

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.ops.linear(x, self.weight, self.bias)


class Embedding(nn.Module):
    """`weight` [vocabulary, size]; maps token ids [rows] to [rows, size]."""

    weight: nn.Parameter | PackedWeight

    def __init__(self, vocab_size: int, size: int, ops: Ops) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocab_size, size), requires_grad=False)
        self.ops = ops

    def forward(self, token_ids: torch.Tensor) -> torch.Tensor:
        return self.ops.embed(token_ids, self.weight)
