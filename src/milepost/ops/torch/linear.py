"""Matrix products."""

import torch
import torch.nn.functional as F


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """x [rows, in] times weight [out, in] transposed, plus bias [out]: [rows, out] in x's dtype."""
    return F.linear(x, weight, bias)
