"""Hugging Face folders: whole and in shards, and every way in which they can be incomplete."""

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
import tiny_models as tiny
import torch

from milepost.errors import ModelError
from milepost.models.loader.load import load_model, open_model, resolve_dtype
from milepost.models.loader.safetensors_folder import open_folder


def saved(folder: Path, shards: bool = False, **settings: Any) -> torch.nn.Module:
    model = tiny.tiny_llama(**settings)
    model.save_pretrained(folder, max_shard_size="30KB" if shards else "1GB")
    assert (folder / "model.safetensors.index.json").exists() is shards
    return model


def edit(path: Path, **changes: Any) -> None:
    found = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**found, **changes}))


@pytest.mark.parametrize("shards", [False, True])
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_weights_are_those_of_transformers(tmp_path: Path, shards: bool, tied: bool, dtype: torch.dtype) -> None:
    model = saved(tmp_path, shards, dtype=dtype, tie_word_embeddings=tied)
    source = open_model(str(tmp_path))
    loaded = load_model(source, dtype, pack=False)
    state = loaded.model.state_dict()
    assert state.keys() == model.state_dict().keys()
    for name, theirs in model.state_dict().items():
        assert state[name].dtype == dtype
        assert torch.equal(state[name], theirs)
    assert (loaded.model.lm_head.weight is loaded.model.model.embed_tokens.weight) is tied
    assert loaded.weight_bytes == sum(p.numel() for p in model.parameters()) * dtype.itemsize
    assert source.tensors.num_bytes(dtype) == loaded.weight_bytes
    assert source.eos_token_ids == (tiny.END,)
    auto = {torch.float32: torch.bfloat16}.get(dtype, dtype)
    assert resolve_dtype("auto", source) == auto


def test_nested_text_configs_are_handed_through(tmp_path: Path) -> None:
    saved(tmp_path)
    edit(tmp_path / "config.json", text_config={"hidden_size": 7})
    assert open_folder(tmp_path).config["text_config"] == {"hidden_size": 7}


def test_missing_shards_are_named(tmp_path: Path) -> None:
    saved(tmp_path, shards=True)
    second = sorted(tmp_path.glob("model-00002-*"))[0]
    second.unlink()
    with pytest.raises(ModelError, match=rf"lacks {second.name} \(hint: fetch the missing files\)"):
        open_folder(tmp_path)
    for path in tmp_path.glob("model-*"):
        path.unlink()
    with pytest.raises(ModelError, match=r"lacks model-00001-\S+, model-00002-\S+, model-00003-\S+ and \d+ more"):
        open_folder(tmp_path)


@pytest.mark.parametrize("shards", [False, True])
@pytest.mark.parametrize("keep", [0, 7, 100, -1, -1000])
def test_truncated_files_are_named(tmp_path: Path, shards: bool, keep: int) -> None:
    saved(tmp_path, shards)
    path = max(tmp_path.glob("*.safetensors"))
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ModelError, match=rf"{path.name} is truncated or damaged: .*hint: fetch it again"):
        open_folder(tmp_path)


def test_damaged_headers_are_named(tmp_path: Path) -> None:
    saved(tmp_path)
    path = tmp_path / "model.safetensors"
    data = path.read_bytes()
    for at in range(0, 600, 13):
        changed = bytearray(data)
        changed[at] ^= 0x55
        path.write_bytes(changed)
        with contextlib.suppress(ModelError):  # a flip within a shape or an offset; some in a name's letters do load
            load_model(open_folder(tmp_path), torch.float32)


def test_a_tensor_that_is_not_where_the_index_says(tmp_path: Path) -> None:
    saved(tmp_path, shards=True)
    path = tmp_path / "model.safetensors.index.json"
    places = json.loads(path.read_text())["weight_map"]
    places["model.norm.weight"] = next(file for file in places.values() if file != places["model.norm.weight"])
    edit(path, weight_map=places)
    with pytest.raises(ModelError, match=r"does not hold 'model.norm.weight', which .* says is in it"):
        open_folder(tmp_path)


def test_an_index_left_from_before_is_not_read(tmp_path: Path) -> None:
    saved(tmp_path)
    names = open_folder(tmp_path).tensors.names()
    edit(tmp_path / "model.safetensors.index.json", weight_map={"gone": "model-00001-of-00002.safetensors"})
    assert open_folder(tmp_path).tensors.names() == names


@pytest.mark.parametrize("weight_map", [None, [], {}, {"a": 1}, {"a": "../model.safetensors"}, {"a": "/etc/passwd"}])
def test_an_index_that_says_nothing_of_use(tmp_path: Path, weight_map: object) -> None:
    saved(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "model-00001-of-00001.safetensors")
    edit(tmp_path / "model.safetensors.index.json", weight_map=weight_map)
    with pytest.raises(ModelError, match=r"does not say where the tensors are|which is no file of the folder"):
        open_folder(tmp_path)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b"[" * 100_000])
@pytest.mark.parametrize("name", ["config.json", "generation_config.json", "tokenizer_config.json"])
def test_damaged_json(tmp_path: Path, name: str, content: bytes) -> None:
    saved(tmp_path)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ModelError, match=name.replace(".", r"\.")):
        open_folder(tmp_path)


@pytest.mark.parametrize("end", ["</s>", {"a": 1}, [1, None], 1.5, True])
def test_end_tokens_must_be_ids(tmp_path: Path, end: object) -> None:
    saved(tmp_path)
    edit(tmp_path / "generation_config.json", eos_token_id=end)
    with pytest.raises(ModelError, match=r"generation_config\.json: eos_token_id is"):
        open_folder(tmp_path)


def test_pickled_weights_are_never_read(tmp_path: Path) -> None:
    saved(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"pickled PyTorch files.*hint: convert them to safetensors"):
        open_folder(tmp_path)


def test_folders_without_weights(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"has no config\.json"):
        open_folder(tmp_path)
    saved(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"has no model\.safetensors"):
        open_folder(tmp_path)
    (tmp_path / "model-Q8_0.gguf").touch()
    with pytest.raises(ModelError, match=r"hint: name its GGUF file, such as .*model-Q8_0\.gguf"):
        open_folder(tmp_path)
    (tmp_path / "adapter_config.json").touch()
    with pytest.raises(ModelError, match="an adapter, not a model"):
        open_folder(tmp_path)
