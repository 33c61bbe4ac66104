"""Llama against transformers, with tiny random configs in fp32."""

import itertools

import pytest
import transformers
from parity import (
    TOLERANCE,
    check_parity,
    check_pieces,
    difference,
    logits_by_transformers,
    prompt_of,
    tiny_model,
    twin,
)

from milepost.engine.plain import generate, logits_of

SHAPE = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 199,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 1000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "rope_theta": 1000.0, "factor": 4.0, "original_max_position_embeddings": 128}
CASES = {
    "plain": transformers.LlamaConfig(**SHAPE),
    "tied": transformers.LlamaConfig(**SHAPE, tie_word_embeddings=True),
    "biases, wide heads": transformers.LlamaConfig(**SHAPE, attention_bias=True, mlp_bias=True, head_dim=32),
    "llama3 rope": transformers.LlamaConfig(**SHAPE, rope_parameters=LLAMA3),
    "yarn rope": transformers.LlamaConfig(**SHAPE, rope_parameters=YARN),
    "linear rope": transformers.LlamaConfig(
        **SHAPE, rope_parameters={"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}
    ),
    "mistral, window 50": transformers.MistralConfig(**SHAPE, sliding_window=50),
}


@pytest.mark.parametrize("name", CASES)
def test_parity_with_transformers(name: str) -> None:
    check_parity(CASES[name])


def test_a_window_in_a_llama_config_is_not_read() -> None:
    """Logits alone: transformers' layers do not read it either, but its cache forgets by it."""
    theirs = tiny_model(transformers.LlamaConfig(**SHAPE, sliding_window=50))
    prompt = prompt_of(SHAPE["vocab_size"])
    assert difference(logits_of(twin(theirs), prompt), logits_by_transformers(theirs, prompt)) < TOLERANCE


def test_pieces_packed_and_resumed() -> None:
    check_pieces(CASES["llama3 rope"])


def test_the_loop_ends_with_the_end_token() -> None:
    ours = twin(tiny_model(CASES["plain"]))
    tokens = list(generate(ours, [1, 2, 3], 8))
    stop = tokens[3]
    until = [*itertools.takewhile(lambda token: token != stop, tokens), stop]
    assert list(generate(ours, [1, 2, 3], 8, eos={stop})) == until
