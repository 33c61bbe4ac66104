"""Mamba-1 and Falcon-Mamba against transformers, with tiny random configs in fp32."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from gguf_twin import Converted, check_gguf_twin
from parity import check_parity, check_pieces, difference, prompt_of, tiny_model, twin

from milepost.engine.plain import logits_of
from milepost.errors import ModelError
from milepost.models import mamba
from milepost.models.base import Model
from milepost.ops import Target, bind
from milepost.specs import Recurrent

SHAPE = {
    "hidden_size": 48,
    "state_size": 6,
    "num_hidden_layers": 3,
    "vocab_size": 199,
    "initializer_range": 0.2,
}
CASES = {
    "mamba": transformers.MambaConfig(**SHAPE),
    "untied, biases": transformers.MambaConfig(**SHAPE, tie_word_embeddings=False, use_bias=True),
    "no bias of the convolution, over two rows": transformers.MambaConfig(**SHAPE, use_conv_bias=False, conv_kernel=2),
    "three times as wide, time steps from 5": transformers.MambaConfig(**SHAPE, expand=3, time_step_rank=5),
    "as falcon-mamba-7b is published: an inner size that no factor gives": transformers.FalconMambaConfig(
        **SHAPE, intermediate_size=104, expand=16
    ),
    "falcon_mamba": transformers.FalconMambaConfig(**SHAPE),
    "falcon_mamba, another epsilon": transformers.FalconMambaConfig(**SHAPE, mixer_rms_eps=0.1),
}
PUBLISHED = {
    **SHAPE,
    "model_type": "mamba",
    "conv_kernel": 4,
    "d_inner": 96,
    "d_model": 48,
    "expand": 2,
    "fused_add_norm": True,
    "hidden_act": "silu",
    "intermediate_size": 96,
    "layer_norm_epsilon": 1e-5,
    "n_layer": 3,
    "residual_in_fp32": True,
    "rms_norm": True,
    "time_step_rank": 3,
    "use_bias": False,
    "use_conv_bias": True,
}
"""The keys of a published config.json, from before transformers 5."""


@pytest.mark.parametrize("name", CASES)
def test_parity_with_transformers(name: str) -> None:
    check_parity(CASES[name])


def test_older_spelling() -> None:
    check_parity(transformers.MambaConfig(**SHAPE), spelled=PUBLISHED)


@pytest.mark.parametrize("name", ["mamba", "falcon_mamba"])
def test_pieces_packed_and_resumed(name: str) -> None:
    check_pieces(CASES[name])


def test_what_was_read_long_ago_matters() -> None:
    ours, prompt = twin(tiny_model(CASES["mamba"])), prompt_of(SHAPE["vocab_size"])
    assert difference(logits_of(ours, prompt)[-1:], logits_of(ours, prompt[-80:])[-1:]) > 1e-2


def in_gguf(name: str, tensor: torch.Tensor) -> Converted:
    """As llama.cpp converts them."""
    if name.endswith(".A_log"):
        tensor = -tensor.exp()
    yield name, tensor.squeeze(1) if name.endswith(".conv1d.weight") else tensor


@pytest.mark.parametrize("name", ["mamba", "untied", "falcon_mamba"])
def test_gguf(tmp_path: Path, name: str) -> None:
    config = transformers.MambaConfig(**SHAPE, tie_word_embeddings=False) if name == "untied" else CASES[name]
    metadata = {
        "context_length": 2**20,
        "embedding_length": 48,
        "feed_forward_length": 0,
        "attention.head_count": 0,
        "block_count": 3,
        "ssm.conv_kernel": 4,
        "ssm.inner_size": 96,
        "ssm.state_size": 6,
        "ssm.time_step_rank": 3,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "ssm.dt_b_c_rms": name == "falcon_mamba",
    }
    check_gguf_twin(tmp_path, tiny_model(config), "mamba", metadata, in_gguf, tolerance=1e-5)


def build(config: dict[str, Any]) -> Model:
    ops, _ = bind(Target(torch.device("cpu"), torch.float32))
    return mamba.build(config, ops)


def test_declared_state() -> None:
    ours = build(PUBLISHED)
    assert len(ours.layer_specs()) == 3
    for (spec,) in ours.layer_specs():
        assert isinstance(spec, Recurrent)
        assert [(buffer.name, buffer.shape, buffer.wide) for buffer in spec.checkpoint] == [
            ("state", (96, 6), True),
            ("conv", (3, 96), False),
        ]
        assert [(buffer.name, buffer.shape, buffer.wide) for buffer in spec.window] == [
            ("state", (96, 6), True),
            ("conv", (67, 96), False),
        ]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [({"hidden_act": "gelu"}, "activation 'gelu'"), ({"hidden_size": None}, "no 'hidden_size'")],
)
def test_configs_that_cannot_be(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        build({**PUBLISHED, **wrong})
