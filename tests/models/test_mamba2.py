"""Mamba-2 against transformers, with tiny random configs in fp32."""

from functools import partial
from pathlib import Path

import pytest
import torch
import transformers
from gguf_mamba2 import mixer_in_gguf, mixer_metadata
from gguf_twin import check_gguf_twin
from parity import check_parity, check_pieces, difference, prompt_of, tiny_model, twin
from safetensors.torch import load_file, save_file

from milepost.engine.plain import logits_of
from milepost.errors import ModelError
from milepost.models import mamba2
from milepost.models.base import Model
from milepost.models.loader.load import load_model, open_model
from milepost.ops import Target, bind
from milepost.specs import Recurrent

SHAPE = {
    "hidden_size": 48,
    "num_heads": 6,
    "head_dim": 16,
    "state_size": 24,
    "n_groups": 2,
    "num_hidden_layers": 3,
    "vocab_size": 199,
    "chunk_size": 32,
    "initializer_range": 0.2,
}
CASES = {
    "two groups": transformers.Mamba2Config(**SHAPE),
    "one group, tied": transformers.Mamba2Config(**{**SHAPE, "n_groups": 1}, tie_word_embeddings=True),
    "a group for each head": transformers.Mamba2Config(**{**SHAPE, "n_groups": 6}),
    "biases": transformers.Mamba2Config(**SHAPE, use_bias=True),
    "no bias of the convolution": transformers.Mamba2Config(**SHAPE, use_conv_bias=False),
    "convolution over two rows": transformers.Mamba2Config(**SHAPE, conv_kernel=2),
    "rows added in the model's dtype": transformers.Mamba2Config(**SHAPE, residual_in_fp32=False),
}
PUBLISHED = {
    **SHAPE,
    "model_type": "mamba2",
    "conv_kernel": 4,
    "expand": 2,
    "hidden_act": "silu",
    "intermediate_size": 96,
    "layer_norm_epsilon": 1e-5,
    "residual_in_fp32": True,
    "rms_norm": True,
    "tie_word_embeddings": False,
    "time_step_limit": [0.0, float("inf")],
    "time_step_rank": 128,
    "use_bias": False,
    "use_conv_bias": True,
}
"""The keys of a published config.json, from before transformers 5."""


@pytest.mark.parametrize("name", CASES)
def test_parity_with_transformers(name: str) -> None:
    check_parity(CASES[name])


def test_older_spelling() -> None:
    check_parity(transformers.Mamba2Config(**SHAPE), spelled=PUBLISHED)


def test_limits_of_the_time_steps() -> None:
    """Without a cache: transformers does not keep to the limits where it reads a token into one."""
    limits = {"time_step_limit": (0.02, 0.3)}
    check_parity(transformers.Mamba2Config(**SHAPE, **limits, use_cache=False))
    theirs = tiny_model(CASES["two groups"])
    prompt = prompt_of(SHAPE["vocab_size"])
    free, bound = (logits_of(twin(theirs, {**PUBLISHED, **more}), prompt) for more in ({}, limits))
    assert difference(bound, free) > 1e-2


def test_pieces_packed_and_resumed() -> None:
    check_pieces(CASES["two groups"])


def test_what_was_read_long_ago_matters() -> None:
    ours, prompt = twin(tiny_model(CASES["two groups"])), prompt_of(SHAPE["vocab_size"])
    assert difference(logits_of(ours, prompt)[-1:], logits_of(ours, prompt[-80:])[-1:]) > 1e-2


@pytest.mark.parametrize("name", ["two groups", "one group, tied"])
def test_the_first_spelling_of_the_embedding(tmp_path: Path, name: str) -> None:
    theirs = tiny_model(CASES[name])
    theirs.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["backbone.embedding.weight"] = tensors.pop("backbone.embeddings.weight")
    save_file(tensors, tmp_path / "model.safetensors")
    loaded = load_model(open_model(str(tmp_path)), torch.float32)
    prompt = prompt_of(SHAPE["vocab_size"], 20)
    assert torch.equal(logits_of(loaded.model, prompt), logits_of(twin(theirs), prompt))


@pytest.mark.parametrize("name", ["two groups", "one group, tied", "no bias of the convolution"])
def test_gguf(tmp_path: Path, name: str) -> None:
    config = CASES[name]
    metadata = {
        "context_length": 2**20,
        "embedding_length": 48,
        "feed_forward_length": 0,
        "attention.head_count": 0,
        "block_count": 3,
        "attention.layer_norm_rms_epsilon": 1e-5,
        **mixer_metadata(96, 6, 24, config.n_groups, 4),
    }
    convert = partial(mixer_in_gguf, num_groups=config.n_groups)
    check_gguf_twin(tmp_path, tiny_model(config), "mamba2", metadata, convert, tolerance=1e-5)


def build(config: dict[str, object]) -> Model:
    ops, _ = bind(Target(torch.device("cpu"), torch.float32))
    return mamba2.build(config, ops)


def test_declared_state() -> None:
    ours = build(PUBLISHED)
    assert len(ours.layer_specs()) == 3
    for (spec,) in ours.layer_specs():
        assert isinstance(spec, Recurrent)
        assert {buffer.name: (buffer.shape, buffer.wide) for buffer in spec.checkpoint} == {
            "state": ((6, 24, 16), True),
            "conv": ((3, 192), False),
        }
        assert {buffer.name: (buffer.shape, buffer.wide) for buffer in spec.window} == {
            "k": ((64, 2, 24), True),
            "u": ((64, 6, 16), True),
            "log_g": ((64, 6), True),
            "conv": ((67, 192), False),
        }


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"n_groups": 4}, "6 Mamba heads cannot be shared out among 4 groups"),
        ({"n_groups": 0}, "6 Mamba heads cannot be shared out among 0 groups"),
        ({"hidden_act": "gelu"}, "activation 'gelu'"),
        ({"vocab_size": None}, "no 'vocab_size'"),
    ],
)
def test_configs_that_cannot_be(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        build({**PUBLISHED, **wrong})
