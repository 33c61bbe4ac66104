"""Gemma 3 against transformers, with tiny random configs in fp32."""

import pytest
import torch
import transformers
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


def test_the_text_part_of_a_model_with_images() -> None:
    vision = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.Gemma3Config(
        text_config={**SHAPE, "layer_types": MIXED},
        vision_config={**vision, "image_size": 28, "patch_size": 14},
        mm_tokens_per_image=4,
    )
    theirs = tiny_model(config)
    ops, _ = bind(Target(torch.device("cpu"), torch.float32))
    ours = gemma3.build(config.to_dict(), ops)
    text = theirs.model.language_model.state_dict()
    weights = {f"language_model.model.{name}": tensor for name, tensor in text.items()}  # the names that files have
    ours.load_state_dict({**weights, "language_model.lm_head.weight": theirs.lm_head.weight})
    prompt = prompt_of(SHAPE["vocab_size"])
    assert difference(logits_of(ours, prompt), logits_by_transformers(theirs, prompt)) < 1e-4


def test_embedding_models_are_refused() -> None:
    ops, _ = bind(Target(torch.device("cpu"), torch.float32))
    with pytest.raises(ModelError, match="bidirectional attention is not supported"):
        gemma3.build({**SHORT, "use_bidirectional_attention": True}, ops)
