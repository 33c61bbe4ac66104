"""Qwen3.5 against transformers, with tiny random configs in fp32."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from gguf_delta import hybrid_in_gguf, hybrid_metadata
from gguf_twin import Conversion, Converted, check_gguf_twin
from parity import (
    check_parity,
    difference,
    logits_by_transformers,
    prompt_of,
    tiny_model,
    twin,
)

from milepost.bench.shapes import config_of
from milepost.engine.plain import logits_of
from milepost.errors import ModelError
from milepost.models import qwen3_5
from milepost.models.base import Model
from milepost.models.loader.load import load_model, open_model
from milepost.models.loader.meta import build_on_meta
from milepost.models.loader.random_weights import random_source
from milepost.ops import Target, bind
from milepost.specs import PagedKV, Recurrent, checkpoint_bytes, kv_block_bytes

SHAPE = {
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "linear_key_head_dim": 24,
    "linear_value_head_dim": 16,
    "vocab_size": 199,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,
}
ROPE = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
TWO_KINDS = ["full_attention", "linear_attention"]


def made(**changes: Any) -> transformers.Qwen3_5TextConfig:
    return transformers.Qwen3_5TextConfig(**{**SHAPE, **changes})


CASES = {
    "three value heads to a key head": made(),
    "as many value heads as key heads, tied": made(linear_num_value_heads=2, tie_word_embeddings=True),
    "attention first, half of a head turned": made(num_hidden_layers=2, layer_types=TWO_KINDS, rope_parameters=ROPE),
    "every second layer attention": made(num_hidden_layers=3, full_attention_interval=2, linear_conv_kernel_dim=2),
    "biases": made(attention_bias=True),
}
PUBLISHED = {
    **SHAPE,
    "model_type": "qwen3_5_text",
    "attention_bias": False,
    "attn_output_gate": True,
    "full_attention_interval": 4,
    "hidden_act": "silu",
    "layer_types": ["linear_attention"] * 3 + ["full_attention"],
    "linear_conv_kernel_dim": 4,
    "mtp_num_hidden_layers": 1,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {
        "mrope_interleaved": True,
        "mrope_section": [2, 1, 1],
        "partial_rotary_factor": 0.25,
        "rope_theta": 10_000_000,
        "rope_type": "default",
    },
    "tie_word_embeddings": True,
}
"""The keys of a published config.json's text part."""
SHORT = {**SHAPE, "model_type": "qwen3_5_text"}


@pytest.mark.parametrize("name", CASES)
def test_parity_with_transformers(name: str) -> None:
    check_parity(CASES[name])


@pytest.mark.parametrize("spelled", [PUBLISHED, SHORT], ids=["as published", "short"])
def test_spellings(spelled: dict[str, Any]) -> None:
    check_parity(transformers.Qwen3_5TextConfig(**spelled), spelled=spelled)


def test_what_was_read_long_ago_matters() -> None:
    ours, prompt = twin(tiny_model(made(layer_types=["linear_attention"] * 4))), prompt_of(SHAPE["vocab_size"])
    assert difference(logits_of(ours, prompt)[-1:], logits_of(ours, prompt[-80:])[-1:]) > 1e-2


def test_the_text_part_of_a_model_with_images(tmp_path: Path) -> None:
    vision = {"depth": 1, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "num_position_embeddings": 16}
    config = transformers.Qwen3_5Config(text_config=SHAPE, vision_config={**vision, "out_hidden_size": 64})
    torch.manual_seed(0)
    theirs = transformers.Qwen3_5ForConditionalGeneration(config).eval()
    theirs.save_pretrained(tmp_path)
    source = open_model(str(tmp_path))
    assert any(name.startswith("model.visual.") for name in source.tensors.names())
    assert not any(name.startswith("model.layers.") for name in source.tensors.names())
    prompt = prompt_of(SHAPE["vocab_size"])
    ours = load_model(source, torch.float32).model
    assert difference(logits_of(ours, prompt), logits_by_transformers(theirs, prompt)) < 1e-4


def test_bfloat16_is_near_float32(tmp_path: Path) -> None:
    theirs, prompt = tiny_model(CASES["biases"]), prompt_of(SHAPE["vocab_size"])
    theirs.save_pretrained(tmp_path)
    wide, narrow = (load_model(open_model(str(tmp_path)), dtype).model for dtype in (torch.float32, torch.bfloat16))
    assert difference(logits_of(narrow, prompt), logits_of(wide, prompt)) < 0.2


def to_gguf(config: transformers.PretrainedConfig) -> Conversion:
    """Value heads go from key head by key head to the first of each, the second of each, and so on."""
    key_heads, value_heads = config.linear_num_key_heads, config.linear_num_value_heads
    keys = 2 * key_heads * config.linear_key_head_dim

    def tiled(tensor: torch.Tensor) -> torch.Tensor:
        heads = [tensor[i :: value_heads // key_heads] for i in range(value_heads // key_heads)]
        return torch.cat(heads)

    def reordered(tensor: torch.Tensor, per_head: int) -> torch.Tensor:
        return tiled(tensor.reshape(value_heads, per_head, *tensor.shape[1:])).reshape(tensor.shape)

    def convert(name: str, tensor: torch.Tensor) -> Converted:
        if name.endswith((".in_proj_qkv.weight", ".conv1d.weight")):
            tensor = torch.cat([tensor[:keys], reordered(tensor[keys:], config.linear_value_head_dim)])
        elif name.endswith(".in_proj_z.weight"):
            tensor = reordered(tensor, config.linear_value_head_dim)
        elif name.endswith((".in_proj_a.weight", ".in_proj_b.weight", ".A_log", ".dt_bias")):
            tensor = reordered(tensor, 1)
        elif name.endswith(".linear_attn.out_proj.weight"):
            tensor = reordered(tensor.T, config.linear_value_head_dim).T
        yield from hybrid_in_gguf(name, tensor)

    return convert


@pytest.mark.parametrize("name", ["three value heads to a key head", "as many value heads as key heads, tied"])
def test_gguf(tmp_path: Path, name: str) -> None:
    config = CASES[name]
    metadata = {**hybrid_metadata(config), "rope.dimension_sections": [2, 1, 1, 0]}
    ours = check_gguf_twin(tmp_path, tiny_model(config), "qwen35", metadata, to_gguf(config), tolerance=1e-5)
    assert ours.max_model_len == 512


def test_gguf_with_a_layer_for_further_tokens_and_named_kinds(tmp_path: Path) -> None:
    """The last layer only predicts further tokens: it is counted as a layer, and left out."""
    config = CASES["attention first, half of a head turned"]
    metadata = {
        **hybrid_metadata(config),
        "block_count": 3,
        "nextn_predict_layers": 1,
        "attention.recurrent_layers": [False, True, False],
        "attention.head_count_kv": [2, 2, 2],
    }

    def convert(name: str, tensor: torch.Tensor) -> Converted:
        yield from to_gguf(config)(name, tensor)
        if name == "model.norm.weight":
            yield "blk.2.nextn.enorm.weight", tensor

    check_gguf_twin(tmp_path, tiny_model(config), "qwen35", metadata, convert, tolerance=1e-5)


def build(config: dict[str, object]) -> Model:
    ops, _ = bind(Target(torch.device("cpu"), torch.float32))
    return qwen3_5.build(config, ops)


def test_declared_state() -> None:
    *linear, attention = build(PUBLISHED).layer_specs()
    assert attention == (PagedKV(2, 32),)
    assert len(linear) == 3
    for (spec,) in linear:
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


def test_the_bench_shape() -> None:
    config = config_of("qwen3.5-0.8b")
    model = build_on_meta(config, 1000)
    num_weights = sum(p.numel() for name, p in model.named_parameters() if name != "lm_head.weight")
    assert round(num_weights / 1e6) == 752
    specs = model.layer_specs()
    assert checkpoint_bytes(specs, 2) == 18 * (16 * 128 * 128 * 4 + 3 * 6144 * 2)
    assert kv_block_bytes(specs, 2) == 16 * 6 * 2 * 2 * 256 * 2


@pytest.mark.full
def test_the_bench_shape_runs() -> None:
    config = config_of("qwen3.5-0.8b")
    loaded = load_model(random_source(config), torch.bfloat16)
    assert torch.isfinite(logits_of(loaded.model, prompt_of(config["vocab_size"], 64))).all()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"linear_num_key_heads": 4}, "6 value heads cannot be shared out among 4 key heads"),
        ({"linear_num_key_heads": 0}, "6 value heads cannot be shared out among 0 key heads"),
        ({"hidden_act": "gelu"}, "activation 'gelu' is not supported"),
        ({"layer_types": ["linear_attention"]}, "4 layers and 1 layer_types"),
        ({"vocab_size": None}, "no 'vocab_size'"),
        ({"model_type": "qwen3_5"}, "no 'text_config'"),
    ],
)
def test_configs_that_cannot_be(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        build({**PUBLISHED, **wrong})
