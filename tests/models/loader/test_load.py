"""Loading: dtypes, memory, names and shapes that do not fit, ties, progress."""

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tiny_models as tiny
import torch
from safetensors.torch import load_file, save_file

from milepost.engine.plain import logits_of
from milepost.errors import ConfigError, ModelError
from milepost.models.loader import load
from milepost.models.loader.load import load_model, open_model, resolve_dtype
from milepost.models.loader.source import ModelSource


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tiny.tiny_llama().save_pretrained(tmp_path)
    return tmp_path


def with_config(source: ModelSource, **changes: Any) -> ModelSource:
    return replace(source, config={**source.config, **changes})


def edit_tensors(folder: Path, drop: tuple[str, ...] = (), **changes: torch.Tensor) -> None:
    """Changes tensors of a saved model; "__" in a name stands for a dot."""
    path = folder / "model.safetensors"
    tensors = {name: tensor for name, tensor in load_file(path).items() if name not in drop}
    save_file(tensors | {name.replace("__", "."): tensor for name, tensor in changes.items()}, path)


def test_the_model_runs_and_nothing_of_it_wants_gradients(folder: Path) -> None:
    loaded = load_model(open_model(str(folder)), torch.float32)
    assert logits_of(loaded.model, [1, 2, 3]).isfinite().all()
    assert not any(p.requires_grad or p.is_meta for p in loaded.model.parameters())
    assert not loaded.model.training
    assert {choice.op for choice in loaded.ops} >= {"linear", "rms_norm"}
    assert loaded.dtype == torch.float32


def test_fp32_is_rounded_once(folder: Path) -> None:
    source = open_model(str(folder))
    full = load_model(source, torch.float32, pack=False).model.state_dict()
    for dtype in (torch.bfloat16, torch.float16):
        for name, tensor in load_model(source, dtype, pack=False).model.state_dict().items():
            assert torch.equal(tensor, full[name].to(dtype))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("half", torch.float16),
        ("float16", torch.float16),
        ("bfloat16", torch.bfloat16),
        ("float", torch.float32),
        ("float32", torch.float32),
    ],
)
def test_named_dtypes(folder: Path, name: str, expected: torch.dtype) -> None:
    assert resolve_dtype(name, open_model(str(folder), name)) == expected


@pytest.mark.parametrize("key", ["dtype", "torch_dtype"])
@pytest.mark.parametrize(
    ("stored", "expected"),
    [("float32", torch.bfloat16), ("float16", torch.float16), ("bfloat16", torch.bfloat16), (None, torch.bfloat16)],
)
def test_auto_dtype(folder: Path, key: str, stored: str | None, expected: torch.dtype) -> None:
    source = with_config(open_model(str(folder)), **{"dtype": None, key: stored})
    assert resolve_dtype("auto", source) == expected
    nested = with_config(source, dtype=None, torch_dtype=None, text_config={key: stored})
    assert resolve_dtype("auto", nested) == expected


def test_auto_dtype_without_a_word_in_the_config_is_that_of_most_tensors(tmp_path: Path) -> None:
    tiny.tiny_llama(torch.float16).save_pretrained(tmp_path)
    source = with_config(open_model(str(tmp_path)), dtype=None)
    assert resolve_dtype("auto", source) == torch.float16


def test_auto_dtype_of_a_gguf_file_is_bfloat16(tmp_path: Path) -> None:
    source = open_model(str(tiny.write_gguf(tmp_path / "model.gguf", tiny.tiny_llama())))
    assert resolve_dtype("auto", source) == torch.bfloat16


def test_an_unknown_dtype_is_found_before_the_model_is(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"unknown dtype 'int8' \(hint: choose one of: auto, bfloat16"):
        open_model(str(tmp_path / "nowhere"), "int8")


def test_an_unknown_architecture(folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps({"model_type": "gpt9"}))
    with pytest.raises(ModelError, match=r"unknown model_type 'gpt9' \(hint: supported: .*llama"):
        open_model(str(folder))


def test_a_model_larger_than_the_memory(folder: Path) -> None:
    source = open_model(str(folder))
    size = load_model(source, torch.float32).weight_bytes
    assert load_model(source, torch.float32, available_bytes=size).weight_bytes == size
    assert load_model(source, torch.bfloat16, available_bytes=size // 2).weight_bytes == size // 2
    with pytest.raises(ModelError, match=r"the weights take 0\.\d\d MiB, and 0\.\d\d MiB of memory are available"):
        load_model(source, torch.float32, available_bytes=size - 1)


def test_memory_of_the_machine_is_asked_for(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "available_memory_bytes", lambda: 1000)
    with pytest.raises(ModelError, match="hint: free memory"):
        load_model(open_model(str(folder)), torch.float32)


def test_too_large_is_found_before_anything_is_read(folder: Path) -> None:
    source = with_config(open_model(str(folder)), vocab_size=1 << 40)
    with pytest.raises(ModelError, match=r"the weights take \d+\.\d\d GiB"):
        load_model(source, torch.float32)


def test_missing_tensors_are_named_and_counted(folder: Path) -> None:
    edit_tensors(folder, drop=("model.norm.weight",))
    with pytest.raises(ModelError, match=r"lacks 1 of the model's tensors: model.norm.weight \(hint"):
        load_model(open_model(str(folder)), torch.float32)
    source = with_config(open_model(str(folder)), num_hidden_layers=3)
    with pytest.raises(ModelError, match=r"lacks 10 of .*: model.layers.2.\S+, model.layers.2.\S+, \S+ and 7 more"):
        load_model(source, torch.float32)


def test_a_wrong_shape_names_both(folder: Path) -> None:
    edit_tensors(folder, model__norm__weight=torch.ones(63))
    message = r"'model.norm.weight' has shape \(63,\), and the config says \(64,\)"
    with pytest.raises(ModelError, match=message):
        load_model(open_model(str(folder)), torch.float32)


def test_unexpected_tensors_make_one_line_and_frequencies_none(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    more = {f"extra__{i}": torch.ones(2) for i in range(5)}
    edit_tensors(folder, model__layers__0__self_attn__rotary_emb__inv_freq=torch.ones(8))
    with caplog.at_level(logging.INFO, logger="milepost.models.loader"):
        load_model(open_model(str(folder)), torch.float32)
        assert not caplog.records
        edit_tensors(folder, **more)
        load_model(open_model(str(folder)), torch.float32)
    assert [record.getMessage() for record in caplog.records] == [
        "5 tensors that the model does not use are left out: extra.0, extra.1, extra.2 and 2 more"
    ]


@pytest.mark.parametrize("tied", [True, None])
def test_a_head_that_is_not_stored_is_the_embedding(folder: Path, tied: bool | None) -> None:
    edit_tensors(folder, drop=("lm_head.weight",))
    model = load_model(with_config(open_model(str(folder)), tie_word_embeddings=tied), torch.float32).model
    assert model.lm_head.weight is model.model.embed_tokens.weight


def test_a_head_that_is_neither_stored_nor_tied_is_missing(folder: Path) -> None:
    edit_tensors(folder, drop=("lm_head.weight",))
    with pytest.raises(ModelError, match=r"lacks 1 of the model's tensors: lm_head\.weight"):
        load_model(open_model(str(folder)), torch.float32)


def test_a_tied_head_that_is_stored_twice(folder: Path) -> None:
    source = with_config(open_model(str(folder)), tie_word_embeddings=True)
    model = load_model(source, torch.float32, pack=False).model
    assert not torch.equal(model.lm_head.weight, model.model.embed_tokens.weight)  # stored as another: kept
    edit_tensors(folder, lm_head__weight=model.model.embed_tokens.weight.clone())
    source = with_config(open_model(str(folder)), tie_word_embeddings=True)
    model = load_model(source, torch.float32, pack=False).model
    assert model.lm_head.weight is model.model.embed_tokens.weight


@pytest.mark.parametrize("stored", [torch.float8_e4m3fn, torch.int8, torch.uint8])
def test_stored_formats_that_cannot_be_run(folder: Path, stored: torch.dtype) -> None:
    edit_tensors(folder, model__norm__weight=torch.ones(64).to(stored))
    with pytest.raises(ModelError, match=r"tensor 'model.norm.weight' is stored as \S+, which is not supported yet"):
        load_model(open_model(str(folder)), torch.float32)


def test_float64_is_converted(folder: Path) -> None:
    edit_tensors(folder, model__norm__weight=torch.full((64,), 1.5, dtype=torch.float64))
    state = load_model(open_model(str(folder)), torch.float32, pack=False).model.state_dict()
    assert torch.equal(state["model.norm.weight"], torch.full((64,), 1.5))


def test_progress_counts_the_bytes_up_to_all(folder: Path) -> None:
    calls: list[tuple[int, int]] = []
    loaded = load_model(
        open_model(str(folder)), torch.float32, progress=lambda done, total: calls.append((done, total)), pack=False
    )
    done = [first for first, _ in calls]
    assert done[0] == 0
    assert done == sorted(set(done))
    assert calls[-1] == (loaded.weight_bytes, loaded.weight_bytes)
    assert len(calls) == 1 + len(loaded.model.state_dict())
