"""Matrix products."""

import torch
import torch.nn.functional as F


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """x [rows, in] times weight [out, in] transposed, plus bias [out]: [rows, out] in x's dtype."""
    return F.linear(x, weight, bias)


def pack(weight: torch.Tensor) -> torch.Tensor:
    """The weight in the order that `linear` (or, with a leading dimension, `moe_mlp`) reads best: here as it is."""
    return weight


def embed(token_ids: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Rows token_ids int64 [rows] of weight [vocabulary, size], as `pack` left it: [rows, size]."""
    return weight[token_ids]
