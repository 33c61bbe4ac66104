"""How GGUF lays out a Mamba-2 mixer (as llama.cpp converts them)."""

import torch
from gguf_twin import Converted


def mixer_in_gguf(name: str, tensor: torch.Tensor, num_groups: int) -> Converted:
    """A itself for log(-A); A and D as columns; no middle dimension in the convolution; a row of the norm for each
    group; the time steps' bias as if of a projection."""
    if name.endswith(".A_log"):
        tensor = -tensor.exp()[:, None]
    elif name.endswith(".D"):
        tensor = tensor[:, None]
    elif name.endswith(".conv1d.weight"):
        tensor = tensor.squeeze(1)
    elif name.endswith((".mixer.norm.weight", ".mamba.norm.weight")):
        tensor = tensor.reshape(num_groups, -1)
    yield name.replace(".dt_bias", ".dt_proj.bias"), tensor


def mixer_metadata(inner_size: int, num_heads: int, state_size: int, num_groups: int, taps: int) -> dict[str, int]:
    return {
        "ssm.inner_size": inner_size,
        "ssm.time_step_rank": num_heads,
        "ssm.state_size": state_size,
        "ssm.group_count": num_groups,
        "ssm.conv_kernel": taps,
    }
