"""Falcon-H1 against transformers, with tiny random configs in fp32."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from gguf_mamba2 import mixer_in_gguf, mixer_metadata
from gguf_twin import Converted, attention_metadata, check_gguf_twin
from parity import check_parity, check_pieces, difference, logits_by_transformers, prompt_of, tiny_model, twin

from milepost.engine.plain import logits_of
from milepost.errors import ModelError
from milepost.models import falcon_h1
from milepost.models.base import Model
from milepost.ops import Target, bind
from milepost.specs import PagedKV, Recurrent

SHAPE = {
    "hidden_size": 48,
    "intermediate_size": 56,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "mamba_d_ssm": 64,
    "mamba_n_heads": 8,
    "mamba_d_head": 8,
    "mamba_d_state": 24,
    "mamba_n_groups": 2,
    "mamba_chunk_size": 32,
    "vocab_size": 199,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
    "embedding_multiplier": 2.5,
    "lm_head_multiplier": 0.3,
    "key_multiplier": 0.6,
    "attention_in_multiplier": 0.9,
    "attention_out_multiplier": 0.8,
    "ssm_in_multiplier": 1.2,
    "ssm_out_multiplier": 0.7,
    "ssm_multipliers": [0.4, 0.7, 1.3, 0.8, 0.5],
    "mlp_multipliers": [0.7, 0.6],
}
MULTIPLIERS = [key for key in SHAPE if key.endswith(("multiplier", "multipliers"))]
NORM_LAST = {"mamba_rms_norm": True, "mamba_norm_before_gate": False}


def made(**changes: Any) -> transformers.FalconH1Config:
    return transformers.FalconH1Config(**{**SHAPE, **changes})


CASES = {
    "no norm": made(),
    "norm after the gate": made(**NORM_LAST),
    "norm before the gate": made(mamba_rms_norm=True, mamba_norm_before_gate=True),
    "norm, one group, tied": made(**NORM_LAST, mamba_n_groups=1, tie_word_embeddings=True),
    "biases": made(attention_bias=True, mlp_bias=True, mamba_proj_bias=True, projectors_bias=True),
    "no bias of the convolution": made(mamba_conv_bias=False),
    "no multipliers": made(**dict.fromkeys(MULTIPLIERS[:-2], 1.0), ssm_multipliers=None, mlp_multipliers=None),
    "as wide as the rows twice": made(mamba_d_ssm=None, mamba_d_head="auto"),
}
PUBLISHED = {
    **{key: value for key, value in SHAPE.items() if key != "rope_parameters"},
    **NORM_LAST,
    "model_type": "falcon_h1",
    "attention_bias": False,
    "attn_layer_indices": None,
    "hidden_act": "silu",
    "mamba_conv_bias": True,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_proj_bias": False,
    "mamba_use_mlp": True,
    "mlp_bias": False,
    "mlp_expansion_factor": 8,
    "num_logits_to_keep": 1,
    "projectors_bias": False,
    "rms_norm_eps": 1e-5,
    "rope_scaling": None,
    "rope_theta": 100000000000.0,
    "tie_word_embeddings": False,
}
"""The keys of a published config.json, from before transformers 5."""


@pytest.mark.parametrize("name", CASES)
def test_parity_with_transformers(name: str) -> None:
    check_parity(CASES[name])


def test_older_spelling() -> None:
    check_parity(transformers.FalconH1Config(**PUBLISHED), spelled=PUBLISHED)


@pytest.mark.parametrize("key", MULTIPLIERS)
def test_every_multiplier_counts(key: str) -> None:
    theirs, prompt = tiny_model(CASES["no norm"]), prompt_of(SHAPE["vocab_size"], 70)
    expected = logits_by_transformers(theirs, prompt)
    without = {**theirs.config.to_dict(), key: None}
    assert difference(logits_of(twin(theirs, without), prompt), expected) > 1e-2


def test_pieces_packed_and_resumed() -> None:
    check_pieces(CASES["norm after the gate"])


def test_what_was_read_long_ago_matters_to_the_mamba_part() -> None:
    ours = twin(tiny_model(made(attention_out_multiplier=0.0)))
    prompt = prompt_of(SHAPE["vocab_size"])
    assert difference(logits_of(ours, prompt)[-1:], logits_of(ours, prompt[-80:])[-1:]) > 1e-2


FACTORS = {
    "embed_tokens": 2.5,
    "lm_head": 0.3,
    "q_proj": 0.9,
    "k_proj": 0.9 * 0.6,
    "v_proj": 0.9,
    "o_proj": 0.8,
    "gate_proj": 0.7,
    "down_proj": 0.6,
    "mamba.out_proj": 0.7,
}


def in_gguf(name: str, tensor: torch.Tensor) -> Converted:
    """As llama.cpp converts them: all multipliers within the weights, q and k as they are."""
    for part, factor in FACTORS.items():
        if part in name:
            tensor = tensor * factor
    if "mamba.in_proj" in name:
        sections = tensor.split((64, 64, 48, 48, 8))
        tensor = torch.cat([part * f * 1.2 for part, f in zip(sections, SHAPE["ssm_multipliers"], strict=True)])
    if name.endswith("pre_ff_layernorm.weight"):
        name = f"blk.{name.split('.')[2]}.ffn_norm"  # the one norm that files keep without ".weight"
    yield from mixer_in_gguf(name, tensor, 2)


@pytest.mark.parametrize("name", ["no norm", "norm after the gate", "no bias of the convolution"])
def test_gguf(tmp_path: Path, name: str) -> None:
    theirs = tiny_model(CASES[name])
    metadata = {**attention_metadata(theirs.config), **mixer_metadata(64, 8, 24, 2, 4), "rope.freq_base": 1e4}
    ours = check_gguf_twin(tmp_path, theirs, "falcon-h1", metadata, in_gguf, tolerance=1e-5)
    assert ours.max_model_len == 512


def build(config: dict[str, Any]) -> Model:
    ops, _ = bind(Target(torch.device("cpu"), torch.float32))
    return falcon_h1.build(config, ops)


def test_each_layer_declares_both_states() -> None:
    assert [[type(spec) for spec in layer] for layer in build(PUBLISHED).layer_specs()] == [[PagedKV, Recurrent]] * 3


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"ssm_multipliers": [1.0, 2.0]}, "2 ssm_multipliers, not 5"),
        ({"mlp_multipliers": [1.0]}, "1 mlp_multipliers, not 2"),
        ({"hidden_act": "gelu"}, "activation 'gelu'"),
        ({"mamba_n_groups": 3}, "8 Mamba heads cannot be shared out among 3 groups"),
    ],
)
def test_configs_that_cannot_be(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        build({**PUBLISHED, **wrong})
