"""Llama against transformers, with tiny random configs in fp32."""

import itertools

import pytest
import torch
import transformers

from milepost.engine.plain import generate, logits_of
from milepost.models import llama
from milepost.models.base import Model
from milepost.ops import Target, bind

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


def ours_and_theirs(config: transformers.PretrainedConfig) -> tuple[Model, torch.nn.Module]:
    torch.manual_seed(0)
    theirs = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager")
    for name, parameter in theirs.named_parameters():
        if name.endswith(("norm.weight", "bias")):
            torch.nn.init.normal_(parameter, mean=1.0 if "norm" in name else 0.0, std=0.3)
    ops, _ = bind(Target(torch.device("cpu"), torch.float32))
    ours = llama.build(config.to_dict(), ops)
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs.eval()


@pytest.mark.parametrize("name", CASES)
def test_parity_with_transformers(name: str) -> None:
    ours, theirs = ours_and_theirs(CASES[name])
    prompt = torch.randint(0, SHAPE["vocab_size"], (200,), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        expected = theirs(prompt[None]).logits[0]
    relative = (logits_of(ours, prompt.tolist()) - expected).norm() / expected.norm()
    assert relative < 1e-4

    answer = theirs.generate(
        prompt[None], attention_mask=torch.ones(1, 200), max_new_tokens=64, do_sample=False, eos_token_id=None
    )
    assert list(generate(ours, prompt.tolist(), 64)) == answer[0, 200:].tolist()


def test_the_loop_ends_with_the_end_token() -> None:
    ours, _ = ours_and_theirs(CASES["plain"])
    tokens = list(generate(ours, [1, 2, 3], 8))
    stop = tokens[3]
    until = [*itertools.takewhile(lambda token: token != stop, tokens), stop]
    assert list(generate(ours, [1, 2, 3], 8, eos={stop})) == until
