"""Qwen3 against transformers, with tiny random configs in fp32."""

from pathlib import Path

import pytest
import transformers
from gguf_twin import attention_metadata, check_gguf_twin
from parity import check_parity, check_pieces, tiny_model

SHAPE = {
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 199,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,
}
WINDOWED = {"use_sliding_window": True, "sliding_window": 50, "max_window_layers": 1}
YARN = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 128}
CASES = {
    "plain": transformers.Qwen3Config(**SHAPE),
    "tied": transformers.Qwen3Config(**SHAPE, tie_word_embeddings=True),
    "biases": transformers.Qwen3Config(**SHAPE, attention_bias=True),
    "upper layers see 50 tokens": transformers.Qwen3Config(**SHAPE, **WINDOWED),
    "yarn rope": transformers.Qwen3Config(**SHAPE, rope_parameters=YARN),
}
PUBLISHED = {
    **SHAPE,
    "model_type": "qwen3",
    "attention_bias": False,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_scaling": None,
    "rope_theta": 1e6,
    "sliding_window": None,
    "max_window_layers": 3,
    "use_sliding_window": False,
    "tie_word_embeddings": True,
}
"""The keys of a published config.json, from before transformers 5."""
OLDER = {
    "as published": PUBLISHED,
    "no head_dim": {key: value for key, value in PUBLISHED.items() if key != "head_dim"},
    "yarn": {
        **PUBLISHED,
        "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128},
    },
}


@pytest.mark.parametrize("name", CASES)
def test_parity_with_transformers(name: str) -> None:
    check_parity(CASES[name])


@pytest.mark.parametrize("name", OLDER)
def test_older_spellings(name: str) -> None:
    check_parity(transformers.Qwen3Config(**OLDER[name]), spelled=OLDER[name])


@pytest.mark.parametrize("name", ["plain", "tied"])
def test_gguf(tmp_path: Path, name: str) -> None:
    theirs = tiny_model(CASES[name])
    check_gguf_twin(tmp_path, theirs, "qwen3", {**attention_metadata(theirs.config), "rope.freq_base": 10_000.0})


def test_gguf_with_yarn(tmp_path: Path) -> None:
    yarn = {**YARN, "beta_fast": 24.0, "beta_slow": 2.0, "attention_factor": 1.5}
    theirs = tiny_model(transformers.Qwen3Config(**SHAPE, rope_parameters=yarn))
    metadata = {
        "rope.freq_base": 1e6,
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": 4.0,
        "rope.scaling.original_context_length": 128,
        "rope.scaling.yarn_beta_fast": 24.0,
        "rope.scaling.yarn_beta_slow": 2.0,
        "rope.scaling.yarn_attn_factor": 1.5,
    }
    check_gguf_twin(tmp_path, theirs, "qwen3", {**attention_metadata(theirs.config), **metadata})


def test_pieces_packed_and_resumed() -> None:
    check_pieces(CASES["plain"])
