"""How GGUF lays out the layers of Qwen3-Next and Qwen3.5 (as llama.cpp converts them)."""

from typing import Any

import torch
import transformers
from gguf_twin import Converted, attention_metadata


def hybrid_metadata(config: transformers.PretrainedConfig) -> dict[str, Any]:
    rope = config.rope_parameters
    return {
        **attention_metadata(config),
        "rope.freq_base": float(rope["rope_theta"]),
        "rope.dimension_count": int(config.head_dim * rope["partial_rotary_factor"]),
        "ssm.conv_kernel": config.linear_conv_kernel_dim,
        "ssm.state_size": config.linear_key_head_dim,
        "ssm.group_count": config.linear_num_key_heads,
        "ssm.time_step_rank": config.linear_num_value_heads,
        "ssm.inner_size": config.linear_num_value_heads * config.linear_value_head_dim,
        "full_attention_interval": 4,
    }


def hybrid_in_gguf(name: str, tensor: torch.Tensor) -> Converted:
    """A itself for log(-A); no middle dimension in the convolution; 1 added to the weights of norms, but the gated one;
    the decays' bias as if of a projection."""
    if name.endswith(".A_log"):
        tensor = -tensor.exp()
    elif name.endswith(".conv1d.weight"):
        tensor = tensor.squeeze(1)
    elif name.endswith("norm.weight") and ".linear_attn." not in name:
        tensor = tensor + 1
    yield name.replace(".dt_bias", ".dt_proj.bias"), tensor
