"""Qwen2 against transformers, with tiny random configs in fp32."""

from pathlib import Path

import pytest
import transformers
from gguf_twin import attention_metadata, check_gguf_twin
from parity import check_parity, check_pieces, tiny_model

from milepost.errors import ModelError
from milepost.models import qwen2

SHAPE = {
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 199,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,
}
WINDOWED = {"use_sliding_window": True, "sliding_window": 50, "max_window_layers": 1}
YARN = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 128}
CASES = {
    "plain": transformers.Qwen2Config(**SHAPE),
    "tied": transformers.Qwen2Config(**SHAPE, tie_word_embeddings=True),
    "one head of keys": transformers.Qwen2Config(**{**SHAPE, "num_key_value_heads": 1}),
    "upper layers see 50 tokens": transformers.Qwen2Config(**SHAPE, **WINDOWED),
    "yarn rope": transformers.Qwen2Config(**SHAPE, rope_parameters=YARN),
}
PUBLISHED = {
    **SHAPE,
    "model_type": "qwen2",
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "sliding_window": 20,
    "max_window_layers": 2,
    "use_sliding_window": False,
    "tie_word_embeddings": True,
}
"""The keys of a published config.json, from before transformers 5."""
OLDER = {
    "as published": PUBLISHED,
    "window": {**PUBLISHED, "use_sliding_window": True},
    "yarn": {**PUBLISHED, "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}},
}


@pytest.mark.parametrize("name", CASES)
def test_parity_with_transformers(name: str) -> None:
    check_parity(CASES[name])


@pytest.mark.parametrize("name", OLDER)
def test_older_spellings(name: str) -> None:
    check_parity(transformers.Qwen2Config(**OLDER[name]), spelled=OLDER[name])


@pytest.mark.parametrize("name", ["plain", "tied"])
def test_gguf(tmp_path: Path, name: str) -> None:
    theirs = tiny_model(CASES[name])
    check_gguf_twin(tmp_path, theirs, "qwen2", {**attention_metadata(theirs.config), "rope.freq_base": 10_000.0})


def test_gguf_with_yarn(tmp_path: Path) -> None:
    yarn = {**YARN, "beta_fast": 24.0, "beta_slow": 2.0, "attention_factor": 1.5}
    theirs = tiny_model(transformers.Qwen2Config(**SHAPE, rope_parameters=yarn))
    metadata = {
        "rope.freq_base": 1e6,
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": 4.0,
        "rope.scaling.original_context_length": 128,
        "rope.scaling.yarn_beta_fast": 24.0,
        "rope.scaling.yarn_beta_slow": 2.0,
        "rope.scaling.yarn_attn_factor": 1.5,
    }
    check_gguf_twin(tmp_path, theirs, "qwen2", {**attention_metadata(theirs.config), **metadata})


def test_pieces_packed_and_resumed() -> None:
    check_pieces(CASES["upper layers see 50 tokens"])


def test_which_layers_have_a_window() -> None:
    assert qwen2.windows(PUBLISHED) == [None, None, None]
    assert qwen2.windows({**PUBLISHED, "use_sliding_window": True}) == [None, None, 20]
    assert qwen2.windows(CASES["upper layers see 50 tokens"].to_dict()) == [None, 50, 50]
    assert qwen2.windows({"num_hidden_layers": 2, "use_sliding_window": True, "sliding_window": None}) == [None, None]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"layer_types": ["full_attention"]}, "3 layers and 1 layer_types"),
        ({"layer_types": ["full_attention", "linear_attention", None]}, "None, linear_attention"),
        ({"layer_types": ["sliding_attention"] * 3, "sliding_window": None}, "no 'sliding_window'"),
        ({"layer_types": ["sliding_attention"] * 3, "sliding_window": 0}, "a sliding window of 0 tokens"),
    ],
)
def test_layer_types_that_cannot_be(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        qwen2.windows({**PUBLISHED, **wrong})
