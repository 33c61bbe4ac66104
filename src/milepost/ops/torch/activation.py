"""Gated activations."""

import torch
import torch.nn.functional as F


def silu_mul(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up, elementwise (SwiGLU: Shazeer, 2020). Same shape and dtype as its inputs."""
    return F.silu(gate) * up
