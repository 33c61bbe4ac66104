"""Elementwise functions."""

import torch
import torch.nn.functional as F


def silu_mul(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up, elementwise (SwiGLU: Shazeer, 2020). Same shape and dtype as its inputs."""
    return F.silu(gate) * up


def gelu_tanh_mul(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """gelu(gate) * up, elementwise (GEGLU: Shazeer, 2020), with gelu's tanh form (Hendrycks and Gimpel, 2016).

    Same shape and dtype as its inputs.
    """
    return F.gelu(gate, approximate="tanh") * up


def soft_cap(x: torch.Tensor, cap: float) -> torch.Tensor:
    """cap * tanh(x / cap), elementwise (Gemma 2, 2024): about x near 0, never beyond +-cap. x's shape and dtype."""
    return torch.tanh((x / cap).contiguous()) * cap
