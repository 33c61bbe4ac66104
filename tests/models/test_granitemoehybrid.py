"""Granite 4 against transformers, with tiny random configs in fp32."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from gguf_mamba2 import mixer_in_gguf, mixer_metadata
from gguf_twin import Converted, attention_metadata, check_gguf_twin
from parity import check_parity, check_pieces, difference, prompt_of, tiny_model, twin

from milepost.bench.shapes import config_of
from milepost.engine.plain import logits_of
from milepost.errors import ModelError
from milepost.models import granitemoehybrid
from milepost.models.base import Model
from milepost.models.loader.load import load_model
from milepost.models.loader.random_weights import random_source
from milepost.ops import Target, bind
from milepost.specs import PagedKV, Recurrent

SHAPE = {
    "hidden_size": 48,
    "intermediate_size": 40,
    "shared_intermediate_size": 56,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "mamba_n_heads": 6,
    "mamba_d_head": 16,
    "mamba_d_state": 24,
    "mamba_chunk_size": 32,
    "layer_types": ["linear_attention", "full_attention", "linear_attention", "linear_attention"],
    "num_local_experts": 0,
    "vocab_size": 199,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,
    "embedding_multiplier": 3.0,
    "attention_multiplier": 0.2,
    "residual_multiplier": 0.4,
    "logits_scaling": 2.0,
}
SPARSE = {"num_local_experts": 5, "num_experts_per_tok": 2}
ROPE = {"position_embedding_type": "rope"}


def made(**changes: Any) -> transformers.GraniteMoeHybridConfig:
    return transformers.GraniteMoeHybridConfig(**{**SHAPE, **changes})


CASES = {
    "dense": made(),
    "dense, tied": made(tie_word_embeddings=True),
    "sparse": made(**SPARSE),
    "rope": made(**ROPE, rope_parameters={"rope_type": "default", "rope_theta": 1e3}),
    "sparse with rope, biases, two groups": made(**SPARSE, **ROPE, attention_bias=True, mamba_n_groups=2),
    "no bias of the convolution, biases of the projections": made(mamba_conv_bias=False, mamba_proj_bias=True),
    "attention alone": made(layer_types=["full_attention"] * 4, **ROPE),
    "Mamba alone": made(layer_types=None, mamba_d_head="auto", use_cache=False),  # transformers' cache needs attention
}
PUBLISHED = {
    **SHAPE,
    "model_type": "granitemoehybrid",
    "attention_bias": False,
    "hidden_act": "silu",
    "layer_types": ["mamba", "attention", "mamba", "mamba"],
    "mamba_conv_bias": True,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_n_groups": 1,
    "mamba_proj_bias": False,
    "normalization_function": "rmsnorm",
    "num_experts_per_tok": 0,
    "position_embedding_type": "nope",
    "rms_norm_eps": 1e-5,
    "rope_scaling": None,
    "rope_theta": 10000,
    "tie_word_embeddings": True,
}
"""The keys of a published config.json, from before transformers 5."""
OLDER = {
    "dense": PUBLISHED,
    "sparse": {**PUBLISHED, **SPARSE},
    "rope": {**PUBLISHED, **ROPE, "rope_theta": 1000},
    "layers under their first name": {
        **{key: value for key, value in PUBLISHED.items() if key != "layer_types"},
        "layers_block_type": PUBLISHED["layer_types"],
    },
}


@pytest.mark.parametrize("name", CASES)
def test_parity_with_transformers(name: str) -> None:
    check_parity(CASES[name])


@pytest.mark.parametrize("name", OLDER)
def test_older_spellings(name: str) -> None:
    check_parity(transformers.GraniteMoeHybridConfig(**OLDER[name]), spelled=OLDER[name])


@pytest.mark.parametrize("name", ["sparse with rope, biases, two groups", "dense"])
def test_pieces_packed_and_resumed(name: str) -> None:
    check_pieces(CASES[name])


def test_what_was_read_long_ago_matters_to_the_mamba_layers() -> None:
    ours, prompt = twin(tiny_model(CASES["Mamba alone"])), prompt_of(SHAPE["vocab_size"])
    assert difference(logits_of(ours, prompt)[-1:], logits_of(ours, prompt[-80:])[-1:]) > 1e-2


def pairs(tensor: torch.Tensor, num_heads: int) -> torch.Tensor:
    """The two halves of each head interleaved, as llama's q and k are stored."""
    return tensor.reshape(num_heads, 2, -1, *tensor.shape[1:]).transpose(1, 2).reshape(tensor.shape)


def in_gguf(name: str, tensor: torch.Tensor, config: transformers.GraniteMoeHybridConfig) -> Converted:
    """As llama.cpp converts a layer."""
    block, kind = f"blk.{name.split('.')[2]}." if ".layers." in name else "", "_shexp" * bool(config.num_local_experts)
    if name.endswith((".q_proj.weight", ".q_proj.bias")):
        yield name, pairs(tensor, 4)
    elif name.endswith((".k_proj.weight", ".k_proj.bias")):
        yield name, pairs(tensor, 2)
    elif name.endswith("shared_mlp.input_linear.weight"):
        yield f"{block}ffn_gate{kind}.weight", tensor[:56]
        yield f"{block}ffn_up{kind}.weight", tensor[56:]
    elif name.endswith("shared_mlp.output_linear.weight"):
        yield f"{block}ffn_down{kind}.weight", tensor
    elif name.endswith("experts.gate_up_proj"):
        yield f"{block}ffn_gate_exps.weight", tensor[:, :40]
        yield f"{block}ffn_up_exps.weight", tensor[:, 40:]
    elif name.endswith("experts.down_proj"):
        yield f"{block}ffn_down_exps.weight", tensor
    elif name.endswith("router.weight"):
        yield f"{block}ffn_gate_inp.weight", tensor
    else:
        yield from mixer_in_gguf(name, tensor, config.mamba_n_groups)


def gguf_metadata(config: transformers.GraniteMoeHybridConfig) -> dict[str, Any]:
    return {
        **attention_metadata(config),
        **mixer_metadata(96, 6, 24, config.mamba_n_groups, 4),
        "attention.head_count_kv": [2 if kind == "full_attention" else 0 for kind in config.layer_types],
        "attention.scale": 0.2,
        "embedding_scale": 3.0,
        "residual_scale": 0.4,
        "logit_scale": 2.0,
        "expert_count": config.num_local_experts,
        "expert_used_count": config.num_experts_per_tok,
        "expert_shared_feed_forward_length": 56,
        "rope.dimension_count": 12,
        "rope.freq_base": config.rope_parameters["rope_theta"],
        "rope.scaling.finetuned": config.position_embedding_type == "rope",
    }


@pytest.mark.parametrize("name", ["dense, tied", "sparse", "sparse with rope, biases, two groups", "rope"])
def test_gguf(tmp_path: Path, name: str) -> None:
    config = CASES[name]
    check_gguf_twin(
        tmp_path,
        tiny_model(config),
        "granitehybrid",
        gguf_metadata(config),
        lambda name, tensor: in_gguf(name, tensor, config),
        tolerance=1e-5,
    )


def test_gguf_that_lacks_half_of_a_matrix(tmp_path: Path) -> None:
    def without_up(name: str, tensor: torch.Tensor) -> Converted:
        return [pair for pair in in_gguf(name, tensor, CASES["dense"]) if pair[0] != "blk.2.ffn_up.weight"]

    with pytest.raises(ModelError, match=r"lacks 1 of the model's tensors: model.layers.2.shared_mlp.input_linear"):
        check_gguf_twin(
            tmp_path, tiny_model(CASES["dense"]), "granitehybrid", gguf_metadata(CASES["dense"]), without_up
        )


def build(config: dict[str, Any]) -> Model:
    ops, _ = bind(Target(torch.device("cpu"), torch.float32))
    return granitemoehybrid.build(config, ops)


def test_declared_states() -> None:
    kinds = [type(spec) for layer in build(PUBLISHED).layer_specs() for spec in layer]
    assert kinds == [Recurrent, PagedKV, Recurrent, Recurrent]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"layer_types": ["mamba"]}, "4 layers and 1 layer_types"),
        ({"layer_types": ["mamba", "attention", "mamba", "conv"]}, "not supported: conv"),
        ({"hidden_act": "gelu_pytorch_tanh"}, "activation 'gelu_pytorch_tanh' is not supported in Mamba layers"),
        (
            {**SPARSE, "layer_types": ["attention"] * 4, "hidden_act": "gelu_pytorch_tanh"},
            "activation 'gelu_pytorch_tanh' is not supported in experts",
        ),
        ({"num_local_experts": 3, "num_experts_per_tok": 4}, "to 4 of 3 experts"),
        ({"mamba_n_groups": 4}, "6 Mamba heads cannot be shared out among 4 groups"),
    ],
)
def test_configs_that_cannot_be(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        build({**PUBLISHED, **wrong})


def test_the_bench_shape() -> None:
    config = config_of("granite-4.0-h-350m")
    loaded = load_model(random_source(config), torch.bfloat16)
    assert 335e6 < loaded.weight_bytes / 2 < 345e6
    assert torch.isfinite(logits_of(loaded.model, prompt_of(config["vocab_size"], 64))).all()
