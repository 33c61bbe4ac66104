"""Normalisation of single rows."""

import torch


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension, the statistics in fp32 (Zhang and Sennrich, 2019).

    x [..., size], weight [size]; the result has x's shape and dtype. The normalised row is rounded to x's dtype before
    it meets the weight, as the published models were trained.
    """
    wide = x.float()
    wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return weight * wide.to(x.dtype)


def offset_rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x / sqrt(mean(x^2) + eps) * (1 + weight) over the last dimension, all in fp32 (as Gemma is trained).

    x [..., size], weight [size]; the result has x's shape and dtype, rounded to it once, at the end.
    """
    wide = x.float()
    wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide * (1.0 + weight.float())).to(x.dtype)
