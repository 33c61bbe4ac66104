"""Gemma 3 against transformers, with tiny random configs in fp32."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from gguf_twin import Converted, attention_metadata, check_gguf_twin
from parity import (
    check_parity,
    check_pieces,
    difference,
    logits_by_transformers,
    prompt_of,
    tiny_model,
    twin,
)
from transformers.models.gemma3 import modeling_gemma3

from milepost.engine.plain import logits_of
from milepost.errors import ModelError
from milepost.models import gemma3
from milepost.models.loader.load import load_model, open_model
from milepost.ops import Target, bind

SHAPE = {
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 199,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,
    "query_pre_attn_scalar": 48,
    "sliding_window": 50,
}
MIXED = ["sliding_attention", "full_attention", "sliding_attention", "sliding_attention"]
ROPES = {
    "full_attention": {"rope_type": "linear", "rope_theta": 5e5, "factor": 8.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 2e3},
}
CASES = {
    "all layers slide": transformers.Gemma3TextConfig(**SHAPE),
    "mixed layers": transformers.Gemma3TextConfig(**SHAPE, layer_types=MIXED),
    "untied, biases": transformers.Gemma3TextConfig(
        **SHAPE, layer_types=MIXED, tie_word_embeddings=False, attention_bias=True
    ),
    "two ropes": transformers.Gemma3TextConfig(**SHAPE, layer_types=MIXED, rope_parameters=ROPES),
    "soft cap of the logits": transformers.Gemma3TextConfig(**SHAPE, layer_types=MIXED, final_logit_softcapping=3.0),
    "silu": transformers.Gemma3TextConfig(**SHAPE, layer_types=MIXED, hidden_activation="silu"),
}
PUBLISHED = {
    **SHAPE,
    "model_type": "gemma3_text",
    "attn_logit_softcapping": None,
    "final_logit_softcapping": None,
    "hidden_activation": "gelu_pytorch_tanh",
    "rms_norm_eps": 1e-6,
    "rope_local_base_freq": 2e3,
    "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
    "rope_theta": 5e5,
    "sliding_window_pattern": 3,
}
"""The keys of a published config.json, from before transformers 5."""
SHORT = {
    "model_type": "gemma3_text",
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 6,
    "sliding_window": 50,
    "vocab_size": 199,
    "initializer_range": 0.2,
}
"""As little as published configs of models with images say of their text part."""
OLDER = {
    "as published": PUBLISHED,
    "no layer slides": {**PUBLISHED, "sliding_window_pattern": 1},
    "short": SHORT,
    "rope scaled": {**SHORT, "rope_scaling": {"factor": 8.0, "rope_type": "linear"}},
}


@pytest.mark.parametrize("name", CASES)
def test_parity_with_transformers(name: str) -> None:
    check_parity(CASES[name])


@pytest.mark.parametrize("name", OLDER)
def test_older_spellings(name: str) -> None:
    check_parity(transformers.Gemma3TextConfig(**OLDER[name]), spelled=OLDER[name])


def plus_one(name: str, tensor: torch.Tensor) -> Converted:
    """GGUF stores norm weights with the 1 added."""
    yield name, tensor + 1 if name.endswith("norm.weight") else tensor


PERIOD_OF_SIX = {**SHAPE, "num_hidden_layers": 7, "query_pre_attn_scalar": SHAPE["head_dim"]}
GGUF_CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "as published": (
        {"rope_parameters": {**ROPES, "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}},
        {"rope.freq_base": 5e5, "rope.scaling.type": "linear", "rope.scaling.factor": 8.0},
    ),
    "more is said": (
        {"rope_parameters": ROPES, "final_logit_softcapping": 3.0, "tie_word_embeddings": False},
        {
            "rope.freq_base": 5e5,
            "rope.freq_base_swa": 2e3,
            "rope.scaling.type": "linear",
            "rope.scaling.factor": 8.0,
            "final_logit_softcapping": 3.0,
        },
    ),
    "a list of layers": (
        {"layer_types": [*MIXED, *MIXED[:3]]},
        {
            "rope.freq_base": 1e6,
            "attention.sliding_window_pattern": [kind == "sliding_attention" for kind in [*MIXED, *MIXED[:3]]],
        },
    ),
    "no layer slides": (
        {"layer_types": ["full_attention"] * 7},
        {"rope.freq_base": 1e6, "attention.sliding_window": 0},
    ),
}


@pytest.mark.parametrize("name", GGUF_CASES)
def test_gguf(tmp_path: Path, name: str) -> None:
    settings, metadata = GGUF_CASES[name]
    theirs = tiny_model(transformers.Gemma3TextConfig(**PERIOD_OF_SIX, **settings))
    metadata = {**attention_metadata(theirs.config), "attention.sliding_window": 50, **metadata}
    check_gguf_twin(tmp_path, theirs, "gemma3", metadata, plus_one, tolerance=1e-5)


def test_the_scale_of_the_scores_in_gguf() -> None:
    sizes = {"embedding_length": 5376, "attention.head_count": 32, "attention.key_length": 128}
    for num_layers, scalar in ((34, 128), (62, 168)):
        metadata = {"general.architecture": "gemma3"}
        metadata |= {f"gemma3.{key}": value for key, value in {**sizes, "block_count": num_layers}.items()}
        assert gemma3.gguf_config(metadata)["query_pre_attn_scalar"] == scalar


def test_pieces_packed_and_resumed() -> None:
    check_pieces(CASES["two ropes"])


def test_soft_cap_of_the_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers reads the setting and does not pass it to its attention, which could apply it: here it does."""
    plain = modeling_gemma3.eager_attention_forward
    capped = lambda *args, **kwargs: plain(*args, **kwargs, softcap=2.0)  # noqa: E731
    theirs = tiny_model(transformers.Gemma3TextConfig(**SHAPE, layer_types=MIXED, attn_logit_softcapping=2.0))
    prompt = prompt_of(SHAPE["vocab_size"])
    uncapped = logits_by_transformers(theirs, prompt)
    monkeypatch.setattr(modeling_gemma3, "eager_attention_forward", capped)
    expected = logits_by_transformers(theirs, prompt)
    assert difference(uncapped, expected) > 1e-2
    assert difference(logits_of(twin(theirs), prompt), expected) < 1e-4


def test_the_text_part_of_a_model_with_images(tmp_path: Path) -> None:
    vision = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.Gemma3Config(
        text_config={**SHAPE, "layer_types": MIXED},
        vision_config={**vision, "image_size": 28, "patch_size": 14},
        mm_tokens_per_image=4,
    )
    theirs, prompt = tiny_model(config), prompt_of(SHAPE["vocab_size"])
    theirs.save_pretrained(tmp_path)
    ours = load_model(open_model(str(tmp_path)), torch.float32).model
    assert difference(logits_of(ours, prompt), logits_by_transformers(theirs, prompt)) < 1e-4


def test_embedding_models_are_refused() -> None:
    ops, _ = bind(Target(torch.device("cpu"), torch.float32))
    with pytest.raises(ModelError, match="bidirectional attention is not supported"):
        gemma3.build({**SHORT, "use_bidirectional_attention": True}, ops)
