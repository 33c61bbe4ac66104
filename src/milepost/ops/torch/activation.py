"""Elementwise functions."""

import torch
import torch.nn.functional as F


def silu(x: torch.Tensor) -> torch.Tensor:
    """x * sigmoid(x), elementwise (Elfwing, Uchibe and Doya, 2017). x's shape and dtype."""
    return F.silu(x.contiguous())


def wide(x: torch.Tensor) -> torch.Tensor:
    """x in fp32."""
    return x.float()


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


def sigmoid(x: torch.Tensor) -> torch.Tensor:
    """1 / (1 + exp(-x)), elementwise. x's shape and dtype."""
    return torch.sigmoid(x.contiguous())


def sigmoid_mul(gate: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """sigmoid(gate) * x, elementwise in fp32 (gates of one value for several of x broadcast). x's shape and dtype."""
    return (torch.sigmoid(gate.float().contiguous()) * x.float()).to(x.dtype)


def add(x: torch.Tensor, y: torch.Tensor, factor: float = 1.0) -> torch.Tensor:
    """x + y * factor, elementwise, product and sum each rounded to their dtype. Same shape and dtype as its inputs."""
    return x + y * factor


def mul(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """x * y, elementwise, of one dtype; x [..., 1] has one value for each row of y [..., size]. y's shape and dtype."""
    return x * y


def softplus(x: torch.Tensor) -> torch.Tensor:
    """log(1 + exp(x)), elementwise: above 0, and about x where x is large. x's shape and dtype."""
    return F.softplus(x.contiguous())
