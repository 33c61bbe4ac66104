"""Models in Hugging Face folders: config.json, safetensors in one file or several, a tokenizer."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from milepost.errors import ModelError
from milepost.models.loader.formats import refuse_quantized
from milepost.models.loader.hf_tokenizer import read_tokenizer
from milepost.models.loader.source import ModelSource
from milepost.models.loader.wording import few, one_line

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
HINT = "the file is damaged or incomplete: fetch it again"


def open_folder(folder: Path) -> ModelSource:
    """The model in a Hugging Face folder. Headers of all shards are read, so that a missing or damaged one shows."""
    if not (folder / "config.json").is_file():
        raise ModelError(f"{folder} has no config.json", "give a folder with a Hugging Face model, or a GGUF file")
    config = read_json(folder / "config.json")
    refuse_quantized(config, folder)
    tensors = SafetensorsFiles(_stored(folder))
    tokenizer, problem = read_tokenizer(folder)
    path = folder / "generation_config.json"
    generation_config = read_json(path) if path.is_file() else {}
    for found, name in ((config, "config.json"), (generation_config, path.name)):
        _check_end_tokens(found.get("eos_token_id"), folder / name)
    return ModelSource(folder, "safetensors", config, generation_config, tensors, tokenizer, problem)


@dataclass(frozen=True, slots=True)
class Stored:
    """Where a tensor is and how it is stored: `format` as safetensors spells it."""

    path: Path
    format: str
    num_elements: int


@dataclass(frozen=True)
class SafetensorsFiles:
    """The tensors of all shards, in the order of the files: a `TensorFile`."""

    tensors: Mapping[str, Stored]

    def names(self) -> list[str]:
        return list(self.tensors)

    def stored_as(self, name: str) -> str:
        return self.tensors[name].format

    def num_bytes(self, dtype: torch.dtype) -> int:
        return sum(stored.num_elements for stored in self.tensors.values()) * dtype.itemsize

    def read(self, names: Collection[str], dtype: torch.dtype) -> Iterator[tuple[str, torch.Tensor]]:
        for path in dict.fromkeys(stored.path for stored in self.tensors.values()):
            with _opened(path) as file:
                for name in file.offset_keys():
                    if name in names and self.tensors[name].path == path:
                        yield name, file.get_tensor(name)


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; ModelError if there is none."""
    try:
        found = json.loads(path.read_bytes())
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror}", "check the file and its permissions") from error
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path} is not valid JSON: {one_line(error)}", HINT) from error
    if not isinstance(found, dict):
        raise ModelError(f"{path} does not hold a JSON object", HINT)
    return found


def _stored(folder: Path) -> dict[str, Stored]:
    """Every tensor of the folder's weights by name."""
    if (folder / SINGLE).is_file() or not (folder / INDEX).is_file():  # an index beside one file is left from before
        return _tensors_of(_single(folder))
    shards = _shards(folder)
    missing = sorted({path.name for path in shards.values() if not path.is_file()})
    if missing:
        raise ModelError(f"{folder} lacks {few(missing)}", "fetch the missing files")
    contents = {path: _tensors_of(path) for path in dict.fromkeys(shards.values())}
    lost = [name for name, path in shards.items() if name not in contents[path]]
    if lost:
        raise ModelError(f"{shards[lost[0]]} does not hold {lost[0]!r}, which {INDEX} says is in it", HINT)
    return {
        name: stored for path, found in contents.items() for name, stored in found.items() if shards.get(name) == path
    }


def _shards(folder: Path) -> dict[str, Path]:
    """Tensor name -> file, from the index. The files are in the folder itself, whatever the index says."""
    places = read_json(folder / INDEX).get("weight_map")
    if not isinstance(places, dict) or not places or not all(isinstance(name, str) for name in places.values()):
        raise ModelError(f"{folder / INDEX} does not say where the tensors are", HINT)
    outside = [name for name in places.values() if Path(name).name != name]
    if outside:
        raise ModelError(f"{folder / INDEX} names {outside[0]!r}, which is no file of the folder", HINT)
    return {name: folder / file for name, file in places.items()}


def _single(folder: Path) -> Path:
    """The one file of weights, or what to do where there is none."""
    if (folder / SINGLE).is_file():
        return folder / SINGLE
    if (folder / "adapter_config.json").is_file():
        raise ModelError(f"{folder} holds an adapter, not a model", "merge it into its base model first")
    ggufs = sorted(folder.glob("*.gguf"))
    if ggufs:
        raise ModelError(f"{folder} has no safetensors", f"name its GGUF file, such as {ggufs[0]}")
    if any(folder.glob("*.bin")) or any(folder.glob("*.pt*")):
        raise ModelError(
            f"{folder} holds its weights as pickled PyTorch files, which can run any code when read",
            "convert them to safetensors, such as with transformers' save_pretrained",
        )
    raise ModelError(f"{folder} has no {SINGLE} and no {INDEX}", "fetch the model's weights as safetensors")


def _tensors_of(path: Path) -> dict[str, Stored]:
    with _opened(path) as file:
        found = {}
        for name in file.offset_keys():
            part = file.get_slice(name)
            found[name] = Stored(path, str(part.get_dtype()), math.prod(part.get_shape()))
        return found


def _opened(path: Path) -> Any:
    """An open safetensors file; its header is checked against the file's size."""
    try:
        return safe_open(path, framework="pt")
    except RuntimeError as error:  # the file is whole, but larger than what can be mapped
        raise ModelError(f"{path} cannot be read: {one_line(error)}", "free memory, or use a smaller model") from error
    except (SafetensorError, OSError, ValueError) as error:
        raise ModelError(f"{path} is truncated or damaged: {one_line(error)}", "fetch it again") from error


def _check_end_tokens(found: Any, path: Path) -> None:
    ids = found if isinstance(found, list) else [] if found is None else [found]
    if not all(type(i) is int for i in ids):
        raise ModelError(f"{path}: eos_token_id is {found!r}, not a token id or a list of them", HINT)
