"""Normalisation of single rows."""

import torch
import torch.nn.functional as F


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension, the statistics in fp32 (Zhang and Sennrich, 2019).

    x [..., size], weight [size]; the result has x's shape and dtype. The normalised row is rounded to x's dtype before
    it meets the weight, as the published models were trained.
    """
    wide = x.float()
    wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return weight * wide.to(x.dtype)


def gated_rms_norm(x: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x / sqrt(mean(x^2) + eps) * weight * silu(gate) over the last dimension, all in fp32: normed, then gated.

    x, gate [..., size], weight [size]; the result has x's shape and gate's dtype, rounded to it once, at the end.
    """
    wide = x.float()
    wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide * weight.float() * F.silu(gate.float().contiguous())).to(gate.dtype)


def l2_norm(x: torch.Tensor, eps: float, factor: float = 1.0) -> torch.Tensor:
    """x / sqrt(sum(x^2) + eps) * factor over the last dimension, computed in fp32. x's shape and dtype."""
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().sum(-1, keepdim=True) + eps) * factor).to(x.dtype)


def scan_output(
    y: torch.Tensor,
    x: torch.Tensor,
    skip: torch.Tensor,
    gate: torch.Tensor,
    weight: torch.Tensor | None,
    num_groups: int,
    eps: float,
    gate_first: bool,
) -> torch.Tensor:
    """What follows a scan (Mamba, Mamba-2): y + x * skip, gated by silu(gate), and normed over each of `num_groups`
    equal parts of a row unless `weight` is None; `gate_first`: gated before that, else after.

    y, x fp32 [rows, size], skip fp32 [size]; gate [rows, size] and weight [size] in the model's dtype. All in fp32,
    rounded once to gate's dtype: [rows, size].
    """
    made, gates = y + x * skip, F.silu(gate.float().contiguous())
    if weight is None:
        return (gates * made).to(gate.dtype)
    made = gates * made if gate_first else made
    parts = made.reshape(len(made), num_groups, made.shape[1] // num_groups)
    normed = parts * torch.rsqrt(parts.square().mean(-1, keepdim=True) + eps)
    made = normed.reshape(made.shape) * weight.float()
    return (made if gate_first else gates * made).to(gate.dtype)


def offset_rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x / sqrt(mean(x^2) + eps) * (1 + weight) over the last dimension, all in fp32 (as Gemma is trained).

    x [..., size], weight [size]; the result has x's shape and dtype, rounded to it once, at the end.
    """
    wide = x.float()
    wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide * (1.0 + weight.float())).to(x.dtype)
