"""Qwen3-Next against transformers, with tiny random configs in fp32."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from gguf_delta import hybrid_in_gguf, hybrid_metadata
from gguf_twin import Conversion, Converted, check_gguf_twin
from parity import check_parity, difference, logits_by_transformers, prompt_of, tiny_model, twin

from milepost.engine.plain import logits_of
from milepost.errors import ModelError
from milepost.layers.mlp import GatedMLP
from milepost.layers.moe import SharedExpertMoE
from milepost.models import qwen3_next
from milepost.models.base import Model
from milepost.models.loader.load import load_model, open_model
from milepost.ops import Target, bind
from milepost.specs import Recurrent

SHAPE = {
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "linear_key_head_dim": 24,
    "linear_value_head_dim": 16,
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 40,
    "vocab_size": 199,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,
}


def made(**changes: Any) -> transformers.Qwen3NextConfig:
    return transformers.Qwen3NextConfig(**{**SHAPE, **changes})


CASES = {
    "all layers sparse": made(),
    "dense first layer, tied": made(mlp_only_layers=[0], tie_word_embeddings=True),
    "every second layer sparse, experts' weights as they are": made(decoder_sparse_step=2, norm_topk_prob=False),
    "one expert": made(num_experts=1, num_experts_per_tok=1),
    "no experts, as many value heads as key heads": made(num_experts=0, linear_num_value_heads=2),
}
PUBLISHED = {
    **SHAPE,
    "model_type": "qwen3_next",
    "attention_bias": False,
    "decoder_sparse_step": 1,
    "full_attention_interval": 2,
    "hidden_act": "silu",
    "linear_conv_kernel_dim": 4,
    "mlp_only_layers": [],
    "norm_topk_prob": True,
    "partial_rotary_factor": 0.25,
    "rms_norm_eps": 1e-6,
    "rope_scaling": None,
    "rope_theta": 10_000_000,
    "tie_word_embeddings": False,
    "use_sliding_window": False,
}
"""The keys of a published config.json, from before transformers 5."""


@pytest.mark.parametrize("name", CASES)
def test_parity_with_transformers(name: str) -> None:
    check_parity(CASES[name])


def test_older_spelling() -> None:
    check_parity(transformers.Qwen3NextConfig(**PUBLISHED), spelled=PUBLISHED)


@pytest.mark.parametrize(("name", "last"), [("dense first layer, tied", 5), ("one expert", 0)])
def test_experts_stored_one_by_one(name: str, last: int, tmp_path: Path) -> None:
    """As published, and as transformers saves them; in memory it has them stacked, as the tests above read them."""
    theirs, prompt = tiny_model(CASES[name]), prompt_of(SHAPE["vocab_size"])
    theirs.save_pretrained(tmp_path)
    source = open_model(str(tmp_path))
    assert f"model.layers.1.mlp.experts.{last}.down_proj.weight" in source.tensors.names()
    assert torch.equal(logits_of(load_model(source, torch.float32).model, prompt), logits_of(twin(theirs), prompt))
    narrow = load_model(source, torch.bfloat16).model
    assert difference(logits_of(narrow, prompt), logits_by_transformers(theirs, prompt)) < 0.2


def to_gguf(config: transformers.PretrainedConfig, fused: bool) -> Conversion:
    """`fused`: as the first converters stored the projections, and as others may store the experts."""
    key_heads, keys = config.linear_num_key_heads, config.linear_key_head_dim
    values = config.linear_num_value_heads // key_heads * config.linear_value_head_dim

    def convert(name: str, tensor: torch.Tensor) -> Converted:
        if name.endswith(".in_proj_qkvz.weight") and not fused:
            *mixed, gate = tensor.reshape(key_heads, -1, config.hidden_size).split([keys, keys, values, values], dim=1)
            yield name.replace("qkvz", "qkv"), torch.cat([part.flatten(0, 1) for part in mixed])
            yield name.replace("qkvz", "z"), gate.flatten(0, 1)
        elif name.endswith(".gate_up_proj") and not fused:
            gate, up = tensor.chunk(2, dim=1)
            yield name.replace("gate_up_proj", "gate_proj.weight"), gate
            yield name.replace("gate_up_proj", "up_proj.weight"), up
        elif ".experts." in name:
            yield f"{name}.weight", tensor
        elif name.endswith("shared_expert_gate.weight"):
            yield name, tensor[0] if fused else tensor
        else:
            yield from hybrid_in_gguf(name, tensor)

    return convert


@pytest.mark.parametrize("fused", [False, True])
def test_gguf(tmp_path: Path, fused: bool) -> None:
    config = CASES["all layers sparse"]
    metadata = {
        **hybrid_metadata(config),
        "expert_count": 6,
        "expert_used_count": 2,
        "expert_feed_forward_length": 32,
        "expert_shared_feed_forward_length": 40,
    }
    check_gguf_twin(tmp_path, tiny_model(config), "qwen3next", metadata, to_gguf(config, fused), tolerance=1e-5)


def build(config: dict[str, object]) -> Model:
    ops, _ = bind(Target(torch.device("cpu"), torch.float32))
    return qwen3_next.build(config, ops)


def test_which_layers_are_sparse() -> None:
    def sparse(**changes: Any) -> list[int]:
        layers = build({**PUBLISHED, **changes}).get_submodule("model.layers")
        assert all(isinstance(layer.mlp, SharedExpertMoE | GatedMLP) for layer in layers)
        return [i for i, layer in enumerate(layers) if isinstance(layer.mlp, SharedExpertMoE)]

    assert sparse() == [0, 1, 2, 3]
    assert sparse(decoder_sparse_step=2) == [1, 3]
    assert sparse(decoder_sparse_step=2, mlp_only_layers=[1, 2]) == [3]
    assert sparse(mlp_only_layers=None) == [0, 1, 2, 3]
    assert sparse(num_experts=0) == []


def test_declared_state() -> None:
    first, _, third, _ = build(PUBLISHED).layer_specs()
    assert first == third
    (spec,) = first
    assert isinstance(spec, Recurrent)
    assert spec.checkpoint_bytes(2) == 6 * 24 * 16 * 4 + 3 * 192 * 2


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"num_experts_per_tok": 7}, "7 experts of 6 for each token are not possible"),
        ({"num_experts_per_tok": 0}, "0 experts of 6 for each token are not possible"),
        ({"num_experts": 1 << 20}, "2 experts of 1048576"),
        ({"hidden_act": "relu"}, "activation 'relu' is not supported"),
        ({"linear_num_key_heads": 4}, "6 value heads cannot be shared out among 4 key heads"),
    ],
)
def test_configs_that_cannot_be(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        build({**PUBLISHED, **wrong})
