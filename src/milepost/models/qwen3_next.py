"""Qwen3-Next: Qwen3.5's layers with other projections in front of the delta rule, and experts in most layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from milepost.layers.gated_delta import GroupedGatedDelta
from milepost.layers.mlp import GatedMLP
from milepost.layers.moe import MoEShape, SharedExpertMoE
from milepost.models import qwen3_5
from milepost.models.base import Config, require
from milepost.models.decoder import CausalLM
from milepost.models.gguf_metadata import block_names, getter
from milepost.models.layer_types import FULL
from milepost.ops import Ops

TIED = {"lm_head.weight": "model.embed_tokens.weight"}
GGUF_ARCHITECTURES = ("qwen3next",)
GGUF_FLAGS = {"gguf_fused_projection": "ssm_in.weight", "gguf_fused_experts": "ffn_gate_up_exps.weight"}

DEFAULTS = {
    **qwen3_5.DEFAULTS,
    "num_key_value_heads": 2,
    "intermediate_size": 5632,
    "num_experts": 512,
    "num_experts_per_tok": 10,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
}
"""What published configs leave out (transformers' Qwen3NextConfig has the same)."""


def build(config: Config, ops: Ops) -> CausalLM:
    config = {**DEFAULTS, **config}

    def layer(i: int, kind: str) -> qwen3_5.HybridLayer:
        mixer = qwen3_5.gated_attention(config, i, ops) if kind == FULL else delta_rule(config, i, ops)
        return qwen3_5.HybridLayer(config, mixer, mlp(config, i, ops), ops)

    return qwen3_5.causal_lm(config, [layer(i, kind) for i, kind in enumerate(qwen3_5.kinds(config))], ops)


def delta_rule(config: Config, layer: int, ops: Ops) -> GroupedGatedDelta:
    return GroupedGatedDelta(qwen3_5.delta_shape(config), layer, ops)


def mlp(config: Config, layer: int, ops: Ops) -> SharedExpertMoE | GatedMLP:
    """Experts in every `decoder_sparse_step`-th layer, but in none of `mlp_only_layers`."""
    size, num_experts = int(require(config, "hidden_size")), int(config["num_experts"])
    dense = layer in (config.get("mlp_only_layers") or ()) or (layer + 1) % int(config["decoder_sparse_step"])
    if dense or num_experts == 0:
        return GatedMLP(size, int(config["intermediate_size"]), ops)
    shape = MoEShape(
        hidden_size=size,
        num_experts=num_experts,
        num_chosen=int(config["num_experts_per_tok"]),
        inner_size=int(config["moe_intermediate_size"]),
        shared_size=int(config["shared_expert_intermediate_size"]),
        normalised=bool(config["norm_topk_prob"]),
    )
    return SharedExpertMoE(shape, ops)


def checkpoint_names(name: str, config: Config) -> list[tuple[str, ...]]:
    """Published checkpoints keep each expert's matrices apart; transformers 5 has them stacked in memory."""
    experts, _, leaf = name.rpartition(".")
    if not experts.endswith(".experts"):
        return []
    leaves = ("gate_proj", "up_proj") if leaf == "gate_up_proj" else (leaf,)
    num_experts = int(config.get("num_experts", DEFAULTS["num_experts"]))
    return [tuple(f"{experts}.{i}.{part}.weight" for i in range(num_experts) for part in leaves)]


def gguf_config(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Every layer has experts here: llama.cpp, the format's reference, knows no others."""
    get, hybrid = getter(metadata), qwen3_5.gguf_hybrid_config(metadata)
    return {
        **hybrid,
        "model_type": "qwen3_next",
        "num_experts": get("expert_count"),
        "num_experts_per_tok": get("expert_used_count"),
        "moe_intermediate_size": get("expert_feed_forward_length"),
        "shared_expert_intermediate_size": get("expert_shared_feed_forward_length") or hybrid["intermediate_size"],
        "norm_topk_prob": get("expert_weights_norm", True),
    }


def gguf_names(name: str, config: Config) -> tuple[str, ...]:
    """GGUF stores the projection of queries, keys and values apart from the gate's, and the experts' gates apart from
    their up projections; some files have either as one tensor."""
    if name.endswith(".in_proj_qkvz.weight") and not config["gguf_fused_projection"]:
        return block_names(name, "attn_qkv.weight", "attn_gate.weight")
    if name.endswith(".experts.gate_up_proj"):
        fused, apart = ("ffn_gate_up_exps.weight",), ("ffn_gate_exps.weight", "ffn_up_exps.weight")
        return block_names(name, *(fused if config["gguf_fused_experts"] else apart))
    if name.endswith(".experts.down_proj"):
        return block_names(name, "ffn_down_exps.weight")
    return qwen3_5.gguf_names(name, config)


def gguf_tensor(name: str, tensor: torch.Tensor, config: Config) -> torch.Tensor:
    """As Qwen3.5's, but for the order of the heads, which stays; the projection apart from the gate's has all queries
    first, then all keys, all values and all gates."""
    if name.endswith(".shared_expert_gate.weight"):
        return tensor.reshape(1, -1)
    if name.endswith(".in_proj_qkvz.weight") and not config["gguf_fused_projection"]:
        return _by_key_head(tensor, config)
    return qwen3_5.gguf_hybrid_tensor(name, tensor)


def _by_key_head(tensor: torch.Tensor, config: Config) -> torch.Tensor:
    """Rows of all queries, all keys, all values and all gates, to those of each key head together."""
    shape = qwen3_5.delta_shape({**DEFAULTS, **config})
    sections = torch.split(tensor, [*shape.conv_sections, shape.value_size])
    heads = [part.reshape(shape.num_key_heads, -1, tensor.shape[1]) for part in sections]
    return torch.cat(heads, dim=1).reshape(tensor.shape)
