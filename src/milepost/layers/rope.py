"""Rotary angles: from a config's rope settings to cos and sin of given positions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from milepost.errors import ModelError
from milepost.ops import Ops


@dataclass(frozen=True)
class Rope:
    """Angles of `2 * len(inv_freq)` values of each head; cos and sin are scaled by `attention_factor` (yarn)."""

    inv_freq: torch.Tensor
    ops: Ops
    attention_factor: float = 1.0

    def __call__(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """cos and sin of positions int64 [rows], each fp32 [rows, head_dim / 2]."""
        return self.ops.rope_angles(positions, self.inv_freq.to(positions.device), self.attention_factor)


def rope_from_config(config: Mapping[str, Any], head_dim: int, ops: Ops) -> Rope:
    """Reads `rope_parameters` (transformers 5) or `rope_theta` and `rope_scaling` (before).

    Kinds: default, linear (Chen et al., 2023), llama3 (the Llama 3.1 report), yarn (Peng et al., 2023), and
    freq_factors: a divisor for each frequency, as GGUF stores llama3's. Kinds that depend on the prompt's length would
    let a longer prompt change a shorter one's rows and are refused. Angles' constants are made on the CPU by name, so
    that a model can be built on the meta device.
    """
    settings = {**(config.get("rope_scaling") or {}), **(config.get("rope_parameters") or {})}
    theta = float(settings.get("rope_theta") or config.get("rope_theta") or 10_000.0)
    kind = settings.get("rope_type") or settings.get("type") or "default"
    fraction = float(settings.get("partial_rotary_factor") or config.get("partial_rotary_factor") or 1.0)
    size = int(head_dim * fraction)
    if size < 2 or size > head_dim or size % 2:
        raise ModelError(
            f"rotary angles over {size} of a head's {head_dim} values are not possible",
            "check head_dim and partial_rotary_factor in the model's config",
        )
    inv_freq = 1.0 / theta ** (torch.arange(0, size, 2, dtype=torch.int64, device="cpu").float() / size)
    if kind == "default":
        return Rope(inv_freq, ops)
    if kind == "linear":
        return Rope(inv_freq / float(settings["factor"]), ops)
    if kind == "llama3":
        return Rope(_llama3(inv_freq, settings), ops)
    if kind == "yarn":
        inv_freq, attention_factor = _yarn(inv_freq, settings, theta, size, config)
        return Rope(inv_freq, ops, attention_factor)
    if kind == "freq_factors":
        return Rope(_divided(inv_freq, settings), ops)
    raise ModelError(
        f"rope type {kind!r} is not supported", "supported rope types: default, linear, llama3, yarn, freq_factors"
    )


def _divided(inv_freq: torch.Tensor, settings: Mapping[str, Any]) -> torch.Tensor:
    """Each frequency divided by its factor."""
    factors = torch.tensor(settings["factors"], dtype=torch.float32, device="cpu")
    if factors.shape != inv_freq.shape:
        found, expected = tuple(factors.shape), tuple(inv_freq.shape)
        raise ModelError(f"the rope's factors have shape {found}, expected {expected}", "fetch the model again")
    return inv_freq / factors


def _llama3(inv_freq: torch.Tensor, settings: Mapping[str, Any]) -> torch.Tensor:
    """Long wavelengths are slowed by `factor`, short ones kept, those between blended."""
    factor, context = float(settings["factor"]), float(settings["original_max_position_embeddings"])
    low, high = float(settings["low_freq_factor"]), float(settings["high_freq_factor"])
    turns = context * inv_freq / (2 * math.pi)
    blend = ((turns - low) / (high - low)).clamp(0, 1)
    return (1 - blend) * inv_freq / factor + blend * inv_freq


def _yarn(
    inv_freq: torch.Tensor, settings: Mapping[str, Any], theta: float, size: int, config: Mapping[str, Any]
) -> tuple[torch.Tensor, float]:
    """Frequencies that turn often in the trained context are kept, rare ones slowed, a ramp between; and the factor
    of cos and sin."""
    context = float(settings.get("original_max_position_embeddings") or config["max_position_embeddings"])
    factor = float(settings.get("factor") or config["max_position_embeddings"] / context)

    def dimension_of(turns: float) -> float:
        return size * math.log(context / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low = dimension_of(float(settings.get("beta_fast") or 32))
    high = dimension_of(float(settings.get("beta_slow") or 1))
    if settings.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, size - 1)
    ramp = ((torch.arange(size // 2, device="cpu").float() - low) / max(high - low, 0.001)).clamp(0, 1)
    factor_of_scale = settings.get("attention_factor")
    if factor_of_scale is None:
        factor_of_scale = _yarn_attention(factor, settings)
    return inv_freq / factor * ramp + inv_freq * (1 - ramp), float(factor_of_scale)


def _yarn_attention(factor: float, settings: Mapping[str, Any]) -> float:
    def scale(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    if settings.get("mscale") and settings.get("mscale_all_dim"):
        return scale(float(settings["mscale"])) / scale(float(settings["mscale_all_dim"]))
    return scale(1.0)
