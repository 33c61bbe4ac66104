"""LFM2 against transformers, with tiny random configs in fp32."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from gguf_twin import Converted, attention_metadata, check_gguf_twin
from parity import check_parity, difference, logits_by_transformers, prompt_of, tiny_model

from milepost.bench.shapes import config_of
from milepost.engine.plain import logits_of
from milepost.errors import ModelError
from milepost.models import lfm2
from milepost.models.base import Model
from milepost.models.loader.load import load_model, open_model
from milepost.models.loader.random_weights import random_source
from milepost.ops import Target, bind
from milepost.specs import PagedKV, Recurrent, checkpoint_bytes

SHAPE = {
    "hidden_size": 64,
    "intermediate_size": 150,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "block_multiple_of": 16,
    "vocab_size": 199,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,
}
MIXED = ["conv", "full_attention", "conv", "conv"]


def made(**changes: Any) -> transformers.Lfm2Config:
    return transformers.Lfm2Config(**{**SHAPE, "layer_types": MIXED, **changes})


CASES = {
    "tied": made(),
    "untied, biases, five taps": made(tie_word_embeddings=False, conv_bias=True, conv_L_cache=5),
    "size as stated": made(block_auto_adjust_ff_dim=False),
    "size times 1.3": made(block_ffn_dim_multiplier=1.3),
    "convolutions alone": made(layer_types=["conv"] * 4, use_cache=False),  # which transformers does not support
    "attention alone": made(layer_types=None),
}
PUBLISHED = {
    **{key: value for key, value in SHAPE.items() if key != "intermediate_size"},
    "model_type": "lfm2",
    "block_auto_adjust_ff_dim": True,
    "block_dim": 64,
    "block_ff_dim": 150,
    "block_ffn_dim_multiplier": 1.0,
    "block_norm_eps": 1e-5,
    "block_use_swiglu": True,
    "conv_L_cache": 3,
    "conv_bias": False,
    "conv_dim": 64,
    "conv_dim_out": 64,
    "full_attn_idxs": [1],
    "norm_eps": 1e-5,
    "num_heads": 4,
    "rope_theta": 1e6,
    "theta": 1e6,
    "use_pos_enc": True,
}
"""The keys of a published config.json, from before transformers 5."""


@pytest.mark.parametrize("name", CASES)
def test_parity_with_transformers(name: str) -> None:
    check_parity(CASES[name])


def test_older_spelling() -> None:
    check_parity(transformers.Lfm2Config(**PUBLISHED), spelled=PUBLISHED)


def test_folder_and_bfloat16(tmp_path: Path) -> None:
    theirs, prompt = tiny_model(CASES["tied"]), prompt_of(SHAPE["vocab_size"])
    theirs.save_pretrained(tmp_path)
    source, expected = open_model(str(tmp_path)), logits_by_transformers(theirs, prompt)
    assert difference(logits_of(load_model(source, torch.float32).model, prompt), expected) < 1e-4
    assert difference(logits_of(load_model(source, torch.bfloat16).model, prompt), expected) < 0.2


@pytest.mark.parametrize("name", ["tied", "size times 1.3", "attention alone"])
def test_gguf(tmp_path: Path, name: str) -> None:
    config = CASES[name]
    config.rms_norm_eps = config.norm_eps
    heads = [2 if kind == "full_attention" else 0 for kind in config.layer_types]
    metadata = {
        **attention_metadata(config),
        "attention.head_count_kv": heads if 0 in heads else 2,
        "feed_forward_length": lfm2.feed_forward_size(config.to_dict()),
        "rope.freq_base": 1e6,
        "shortconv.l_cache": 3,
        "vocab_size": 199,
    }

    def convert(name: str, tensor: torch.Tensor) -> Converted:
        yield name, tensor.squeeze(1) if ".conv.conv." in name else tensor

    check_gguf_twin(tmp_path, tiny_model(config), "lfm2", metadata, convert)


def test_size_of_the_feed_forward_layers() -> None:
    """As the published models of 350M and 1.2B have it."""
    assert lfm2.feed_forward_size({**lfm2.DEFAULTS, "block_ff_dim": 6656}) == 4608
    assert lfm2.feed_forward_size({**lfm2.DEFAULTS, "intermediate_size": 12288}) == 8192
    assert lfm2.feed_forward_size({**lfm2.DEFAULTS, "block_ff_dim": 151, "block_ffn_dim_multiplier": None}) == 100


def build(config: dict[str, object]) -> Model:
    ops, _ = bind(Target(torch.device("cpu"), torch.float32))
    return lfm2.build(config, ops)


def test_declared_state() -> None:
    first, second, *_ = build(PUBLISHED).layer_specs()
    assert second == (PagedKV(2, 16),)
    (spec,) = first
    assert isinstance(spec, Recurrent)
    assert [(buffer.name, buffer.shape, buffer.wide) for buffer in spec.checkpoint] == [("conv", (2, 64), False)]
    assert [(buffer.name, buffer.shape, buffer.wide) for buffer in spec.window] == [("conv", (66, 64), False)]


def test_the_bench_shape() -> None:
    config = config_of("lfm2-350m")
    loaded = load_model(random_source(config), torch.bfloat16)
    assert round(loaded.weight_bytes / 2e6) == 354
    assert checkpoint_bytes(loaded.model.layer_specs(), 2) == 10 * 2 * 1024 * 2
    assert torch.isfinite(logits_of(loaded.model, prompt_of(config["vocab_size"], 64))).all()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"layer_types": ["conv"]}, "4 layers and 1 layer_types"),
        ({"layer_types": ["conv", "conv", "linear_attention", "conv"]}, "not supported: linear_attention"),
        ({"block_ff_dim": None}, "no 'intermediate_size'"),
        ({"hidden_size": None}, "no 'hidden_size'"),
    ],
)
def test_configs_that_cannot_be(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        build({**PUBLISHED, **wrong})
