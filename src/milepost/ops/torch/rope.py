"""Rotary position embedding."""

import torch


def rope_angles(positions: torch.Tensor, inv_freq: torch.Tensor, factor: float) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin of position * inv_freq, times `factor`: positions int64 [rows], inv_freq fp32 [size]; both are fp32
    [rows, size].

    The angle is an fp32 product, as the published models were trained: at a far position its rounding counts.
    """
    angles = positions.float()[:, None] * inv_freq
    return angles.cos() * factor, angles.sin() * factor


def rotate_half(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate pairs (i, i + d/2) of each head's first d values by the row's angles (Su et al., 2021).

    x [rows, heads, head_dim]; cos, sin fp32 [rows, d / 2] with d <= head_dim (the rest passes). Computed in fp32,
    returned in x's dtype.
    """
    half = cos.shape[-1]
    first, second, rest = x[..., :half].float(), x[..., half : 2 * half].float(), x[..., 2 * half :]
    cos, sin = cos[:, None], sin[:, None]
    turned = torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(x.dtype)
    return torch.cat([turned, rest], dim=-1) if rest.shape[-1] else turned
