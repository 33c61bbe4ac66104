"""Mamba-2 alone: `mamba2`, such as Mamba-Codestral."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from milepost.errors import ModelError
from milepost.layers.linear import Embedding
from milepost.layers.mamba2 import GatedNorm, Mamba2, Mamba2Shape
from milepost.layers.norm import RMSNorm
from milepost.models.backbone import TIED as TIED
from milepost.models.backbone import Backbone, BackboneLM, Block
from milepost.models.backbone import checkpoint_names as checkpoint_names
from milepost.models.base import Config, require
from milepost.models.gguf_metadata import block_names, getter, vocab_size
from milepost.ops import Ops

GGUF_ARCHITECTURES = ("mamba2",)
GGUF_FLAGS = {"use_conv_bias": "ssm_conv1d.bias"}


def build(config: Config, ops: Ops) -> BackboneLM:
    shape = mixer_shape(config)
    size, eps = shape.hidden_size, float(config.get("layer_norm_epsilon", 1e-5))

    def block(i: int) -> Block:
        norm = GatedNorm(shape.inner_size, shape.num_groups, eps, ops)
        return Block(RMSNorm(size, eps, ops), Mamba2(shape, i, ops, norm))

    embeddings = Embedding(int(require(config, "vocab_size")), size, ops)
    layers = [block(i) for i in range(int(require(config, "num_hidden_layers")))]
    wide_residual = bool(config.get("residual_in_fp32", True))
    return BackboneLM(Backbone(embeddings, layers, RMSNorm(size, eps, ops)), wide_residual, ops)


def mixer_shape(config: Config) -> Mamba2Shape:
    check_activation(config)
    bias = bool(config.get("use_bias", False))
    return Mamba2Shape(
        hidden_size=int(require(config, "hidden_size")),
        num_heads=int(config.get("num_heads", 128)),
        head_dim=int(config.get("head_dim", 64)),
        state_size=int(config.get("state_size", 128)),
        num_groups=int(config.get("n_groups", 8)),
        conv_taps=int(config.get("conv_kernel", 4)),
        conv_bias=bool(config.get("use_conv_bias", True)),
        in_bias=bias,
        out_bias=bias,
        dt_limit=time_step_limit(config),
    )


def check_activation(config: Config, where: str = "Mamba layers") -> None:
    """ModelError if the config's activation is not the one of all published Mamba models."""
    found = config.get("hidden_act") or "silu"
    if found != "silu":
        raise ModelError(f"activation {found!r} is not supported in {where}", "supported: silu")


def time_step_limit(config: Config) -> tuple[float, float]:
    """The bounds of the time steps. JSON has no infinity: transformers 5 writes {"__float__": "Infinity"} for it."""
    stated = config.get("time_step_limit") or (0.0, math.inf)
    low, high = (float(value["__float__"] if isinstance(value, Mapping) else value) for value in stated)
    return low, high


def gguf_config(metadata: Mapping[str, Any]) -> dict[str, Any]:
    get = getter(metadata)
    inner_size, heads = get("ssm.inner_size"), get("ssm.time_step_rank")
    return {
        "model_type": "mamba2",
        "hidden_size": get("embedding_length"),
        "num_hidden_layers": get("block_count"),
        "vocab_size": vocab_size(metadata),
        "num_heads": heads,
        "head_dim": inner_size // heads,
        "state_size": get("ssm.state_size"),
        "n_groups": get("ssm.group_count", 1),
        "conv_kernel": get("ssm.conv_kernel"),
        "layer_norm_epsilon": get("attention.layer_norm_rms_epsilon", 1e-5),
    }


def gguf_names(name: str, config: Config) -> tuple[str, ...]:
    """GGUF takes the time steps' bias for that of Mamba-1's projection."""
    return block_names(name, "ssm_dt.bias") if name.endswith(".dt_bias") else ()


def gguf_tensor(name: str, tensor: torch.Tensor, config: Config) -> torch.Tensor:
    """GGUF stores A itself rather than log(-A), A and D as columns, the convolution and the norm without and with an
    extra dimension."""
    if name.endswith(".A_log"):
        return (-tensor.float()).log().reshape(-1)
    if name.endswith((".D", ".mixer.norm.weight", ".mamba.norm.weight")):
        return tensor.reshape(-1)
    return tensor.unsqueeze(1) if name.endswith(".conv1d.weight") else tensor
