"""Mamba-1 alone: `mamba`, and `falcon_mamba`, which norms time steps, B and C."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from milepost.layers.linear import Embedding
from milepost.layers.mamba import Mamba, MambaShape
from milepost.layers.norm import RMSNorm
from milepost.models.backbone import TIED as TIED
from milepost.models.backbone import Backbone, BackboneLM, Block
from milepost.models.backbone import checkpoint_names as checkpoint_names
from milepost.models.base import Config, require
from milepost.models.gguf_metadata import getter, vocab_size
from milepost.models.mamba2 import check_activation
from milepost.ops import Ops

GGUF_ARCHITECTURES = ("mamba",)
GGUF_FLAGS = {"use_conv_bias": "ssm_conv1d.bias"}


def build(config: Config, ops: Ops) -> BackboneLM:
    shape = mixer_shape(config)
    size, eps = shape.hidden_size, float(config.get("layer_norm_epsilon", 1e-5))
    embeddings = Embedding(int(require(config, "vocab_size")), size, ops)
    num_layers = int(require(config, "num_hidden_layers"))
    layers = [Block(RMSNorm(size, eps, ops), Mamba(shape, i, ops)) for i in range(num_layers)]
    wide_residual = bool(config.get("residual_in_fp32", True))
    return BackboneLM(Backbone(embeddings, layers, RMSNorm(size, eps, ops)), wide_residual, ops)


def mixer_shape(config: Config) -> MambaShape:
    check_activation(config)
    size, rank = int(require(config, "hidden_size")), config.get("time_step_rank", "auto")
    norms_inside = config.get("model_type") == "falcon_mamba"
    return MambaShape(
        hidden_size=size,
        inner_size=int(config.get("intermediate_size") or config.get("expand", 2) * size),
        state_size=int(config.get("state_size", 16)),
        dt_rank=-(-size // 16) if rank == "auto" else int(rank),
        conv_taps=int(config.get("conv_kernel", 4)),
        conv_bias=bool(config.get("use_conv_bias", True)),
        bias=bool(config.get("use_bias", False)),
        inner_eps=float(config.get("mixer_rms_eps", 1e-6)) if norms_inside else None,
    )


def gguf_config(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """GGUF knows both models as one architecture, and not the epsilon of Falcon's inner norms, which is always 1e-6."""
    get = getter(metadata)
    return {
        "model_type": "falcon_mamba" if get("ssm.dt_b_c_rms", False) else "mamba",
        "hidden_size": get("embedding_length"),
        "num_hidden_layers": get("block_count"),
        "vocab_size": vocab_size(metadata),
        "expand": get("ssm.inner_size") / get("embedding_length"),
        "state_size": get("ssm.state_size"),
        "time_step_rank": get("ssm.time_step_rank"),
        "conv_kernel": get("ssm.conv_kernel"),
        "layer_norm_epsilon": get("attention.layer_norm_rms_epsilon", 1e-5),
    }


def gguf_tensor(name: str, tensor: torch.Tensor, config: Config) -> torch.Tensor:
    """GGUF stores A itself rather than log(-A), and the convolution without its middle dimension."""
    if name.endswith(".A_log"):
        return (-tensor.float()).log()
    return tensor.unsqueeze(1) if name.endswith(".conv1d.weight") else tensor
