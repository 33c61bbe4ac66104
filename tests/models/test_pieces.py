"""Every family, read in pieces: how a prompt is cut and what it is packed with must not change what is answered.

A new family: one row in FAMILIES.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache

import pytest
import torch
import transformers
from parity import difference, prompt_of, tiny_model, twin
from piecewise import Reader

from milepost.engine.plain import logits_of
from milepost.models.base import Model
from milepost.models.registry import MODEL_TYPES
from milepost.specs import CHUNK, Recurrent

TOLERANCE, CLEARLY = 1e-4, 1e-2
PROMPT_TOKENS = 215
PIECES = (1, 17, 63, 64, 65)

SHAPE = {
    "hidden_size": 48,
    "intermediate_size": 56,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 3,
    "vocab_size": 199,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,
}
MAMBA = {key: SHAPE[key] for key in ("hidden_size", "num_hidden_layers", "vocab_size", "initializer_range")}
MAMBA2 = {"mamba_n_heads": 6, "mamba_d_head": 16, "mamba_d_state": 24, "mamba_n_groups": 2}
WINDOW = {"sliding_window": 50, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}
DELTA = {
    "head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "linear_key_head_dim": 24,
    "linear_value_head_dim": 16,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
}
EXPERTS = {
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 40,
    "decoder_sparse_step": 2,
}
FAMILIES = {
    "falcon_h1": transformers.FalconH1Config(**SHAPE, **MAMBA2, mamba_d_ssm=96, mamba_rms_norm=True),
    "falcon_mamba": transformers.FalconMambaConfig(**MAMBA, state_size=6),
    "gemma3_text": transformers.Gemma3TextConfig(**SHAPE, **WINDOW, head_dim=32),
    "granitemoehybrid": transformers.GraniteMoeHybridConfig(
        **SHAPE,
        **MAMBA2,
        layer_types=["linear_attention", "full_attention", "linear_attention"],
        num_local_experts=5,
        num_experts_per_tok=2,
        shared_intermediate_size=40,
    ),
    "lfm2": transformers.Lfm2Config(**SHAPE, layer_types=["conv", "full_attention", "conv"], conv_L_cache=4),
    "llama": transformers.LlamaConfig(**SHAPE),
    "mamba": transformers.MambaConfig(**MAMBA, state_size=6),
    "mamba2": transformers.Mamba2Config(**MAMBA, num_heads=6, head_dim=16, state_size=24, n_groups=2),
    "mistral": transformers.MistralConfig(**SHAPE, sliding_window=50),
    "qwen2": transformers.Qwen2Config(**SHAPE),
    "qwen3": transformers.Qwen3Config(**SHAPE, head_dim=32),
    "qwen3_5_text": transformers.Qwen3_5TextConfig(**SHAPE, **DELTA),
    "qwen3_next": transformers.Qwen3NextConfig(**SHAPE, **DELTA, **EXPERTS),
}
"""A tiny config for each `model_type`."""
ATTENTION_ALONE = {"gemma3_text", "llama", "mistral", "qwen2", "qwen3"}


@cache
def model_of(family: str) -> Model:
    return twin(tiny_model(FAMILIES[family]))


def test_every_family_is_here() -> None:
    assert {MODEL_TYPES[family] for family in FAMILIES} == set(MODEL_TYPES.values())


@pytest.mark.parametrize("family", FAMILIES)
def test_pieces_packed_and_resumed(family: str) -> None:
    """Six prompts in one batch after another, cut in pieces of another size each; then one of the sequences ends, and
    another goes on from its last checkpoint."""
    ours, reader = model_of(family), Reader(model_of(family), max_tokens=2048)
    sizes = {f"by {size}": cut(size) for size in PIECES} | {"whole": [PROMPT_TOKENS]}
    prompts = {name: prompt_of(199, PROMPT_TOKENS, seed) for seed, name in enumerate(sizes)}
    expected = {name: logits_of(ours, prompt) for name, prompt in prompts.items()}
    found: dict[str, list[torch.Tensor]] = {name: [] for name in sizes}
    for batch in batches(prompts, sizes):
        for name, logits in reader.read(batch).items():
            found[name].append(logits)
    for name, pieces in found.items():
        check_same(torch.cat(pieces), expected[name])

    kept = reader.resume("again", of="by 17")
    assert kept == PROMPT_TOKENS // CHUNK * CHUNK
    rest = {"other": prompts["whole"][:70], "again": prompts["by 17"][kept:], "by 64": [3]}
    check_same(reader.read(rest)["again"], expected["by 17"][kept:])


def check_same(logits: torch.Tensor, expected: torch.Tensor) -> None:
    assert difference(logits, expected) < TOLERANCE
    assert int(logits[-1].argmax()) == int(expected[-1].argmax())


def cut(size: int) -> list[int]:
    """Pieces of `size` tokens and a last one of the rest. Single tokens only lead past the first grid point."""
    num = min(PROMPT_TOKENS // size, CHUNK + 6)
    return [size] * num + [PROMPT_TOKENS - size * num]


def batches(
    prompts: Mapping[str, Sequence[int]], sizes: Mapping[str, Sequence[int]]
) -> Iterator[dict[str, Sequence[int]]]:
    """One batch after another: of each prompt its next piece, until all are read."""
    read = dict.fromkeys(prompts, 0)
    for i in range(max(map(len, sizes.values()))):
        batch = {name: prompts[name][read[name] :][: of[i]] for name, of in sizes.items() if i < len(of)}
        read |= {name: read[name] + len(piece) for name, piece in batch.items()}
        yield batch
    assert all(read[name] == len(prompt) for name, prompt in prompts.items())


@pytest.mark.parametrize("num_tokens", [2 * CHUNK, 2 * CHUNK + 30], ids=["at a grid point", "between grid points"])
@pytest.mark.parametrize("family", sorted(set(FAMILIES) - ATTENTION_ALONE))
def test_the_states_of_another_sequence_change_the_answer(family: str, num_tokens: int) -> None:
    """Two sequences take each other's checkpoint and window, and keep their own KV."""
    ours, reader = model_of(family), Reader(model_of(family))
    prompts = {name: prompt_of(199, num_tokens + 1, seed) for name, seed in (("a", 1), ("b", 2))}
    reader.read({name: prompt[:-1] for name, prompt in prompts.items()})
    a, b = reader.running["a"], reader.running["b"]
    if num_tokens % CHUNK:
        a.window, b.window = b.window, a.window
    a.states, b.states = b.states, a.states
    for name, logits in reader.read({name: prompt[-1:] for name, prompt in prompts.items()}).items():
        assert logits.isfinite().all()
        assert difference(logits, logits_of(ours, prompts[name])[-1:]) > CLEARLY


@pytest.mark.parametrize("family", sorted(ATTENTION_ALONE))
def test_families_without_such_states(family: str) -> None:
    specs = [spec for layer in model_of(family).layer_specs() for spec in layer]
    assert specs
    assert not any(isinstance(spec, Recurrent) for spec in specs)
