"""Models in GGUF files: metadata becomes a config, tensors take their checkpoint's names and are dequantised."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from milepost.errors import MilepostError, ModelError
from milepost.models.base import ModelFile
from milepost.models.loader.gguf_header import HINT, Header, StoredTensor, read_header
from milepost.models.loader.gguf_tokenizer import end_token_ids, read_tokenizer, token_id
from milepost.models.loader.meta import build_on_meta
from milepost.models.loader.source import ModelSource
from milepost.models.loader.wording import few, one_line
from milepost.models.registry import gguf_model_file

PART = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)
"""The name of one file of a model that is split over several."""

PIECE_ELEMENTS = 1 << 22
"""Elements dequantised at a time: what is held in fp32 beside the result."""

_PLAIN = {
    GGMLQuantizationType.F32: torch.float32,
    GGMLQuantizationType.F16: torch.float16,
    GGMLQuantizationType.BF16: torch.bfloat16,
    GGMLQuantizationType.F64: torch.float64,
}
"""Types that hold numbers rather than blocks."""

_SAMPLING = {
    "temperature": "temp",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "penalty_repeat",
}
"""Key of generation_config.json -> key below `general.sampling` in GGUF metadata."""


def open_gguf(path: Path) -> ModelSource:
    """The model in a GGUF file, or in all files of a split one, of which `path` is any."""
    header = _whole(path)
    architecture = header.metadata.get("general.architecture")
    if not isinstance(architecture, str):
        raise ModelError(f"{path} names no architecture", HINT)
    module = gguf_model_file(architecture)
    config = _config(module, header)
    wanted = build_on_meta(config, len(header.tensors)).state_dict().keys()
    tensors = _by_checkpoint_name(module, architecture, wanted, header.tensors, config)
    _refuse_types([part for name, parts in tensors.items() if name in wanted for part in parts])
    tokenizer, problem = read_tokenizer(header.metadata)
    return ModelSource(
        path=path,
        format="gguf",
        config=config,
        generation_config=_generation_config(header.metadata),
        tensors=GGUFTensors(tensors, module, config),
        tokenizer=tokenizer,
        tokenizer_problem=problem,
    )


@dataclass(frozen=True)
class GGUFTensors:
    """The tensors of a GGUF model by their checkpoint's names (unknown ones by their own), each in one part or several:
    a `TensorFile`."""

    tensors: Mapping[str, tuple[StoredTensor, ...]]
    module: ModelFile
    config: Mapping[str, Any]

    def names(self) -> list[str]:
        return list(self.tensors)

    def stored_as(self, name: str) -> str:
        return self.tensors[name][0].type.name

    def num_bytes(self, dtype: torch.dtype) -> int:
        return sum(math.prod(part.shape) for parts in self.tensors.values() for part in parts) * dtype.itemsize

    def read(self, names: Collection[str], dtype: torch.dtype) -> Iterator[tuple[str, torch.Tensor]]:
        for name, stored in self.tensors.items():
            if name in names:
                yield name, self._checkpoint_form(name, [read_tensor(part, dtype) for part in stored])

    def _checkpoint_form(self, name: str, parts: list[torch.Tensor]) -> torch.Tensor:
        try:
            tensor = parts[0] if len(parts) == 1 else torch.cat(parts, dim=-2)
            return self.module.gguf_tensor(name, tensor, self.config)
        except (RuntimeError, ValueError, ArithmeticError, IndexError) as error:
            shapes = " and ".join(str(tuple(part.shape)) for part in parts)
            raise ModelError(f"tensor {name!r} of shape {shapes} does not fit the model's config", HINT) from error


def read_tensor(stored: StoredTensor, dtype: torch.dtype) -> torch.Tensor:
    """One tensor, in memory of its own: plain numbers as stored, blocks dequantised to `dtype`."""
    try:
        data = np.asarray(np.memmap(stored.path, np.uint8, "r", stored.start, (stored.num_bytes,)))
    except (OSError, ValueError) as error:
        raise ModelError(f"cannot read tensor {stored.name!r} of {stored.path}: {one_line(error)}", HINT) from error
    if stored.type in _PLAIN:
        return torch.from_numpy(data.copy()).view(_PLAIN[stored.type]).reshape(stored.shape)
    width = stored.shape[-1]
    rows = data.reshape(-1, gguf.quant_shape_to_byte_shape((width,), stored.type)[0])
    out = torch.empty(len(rows), width, dtype=dtype)
    step = max(1, PIECE_ELEMENTS // width)
    with np.errstate(all="ignore"):  # infinities are the file's
        for start in range(0, len(rows), step):
            out[start : start + step] = torch.from_numpy(gguf.dequantize(rows[start : start + step], stored.type))
    return out.reshape(stored.shape)


def _whole(path: Path) -> Header:
    """The header of the file; of a split model, the first part's metadata and the tensors of all parts."""
    header = read_header(path)
    count = header.metadata.get("split.count", 1)
    if count in (0, 1):
        return header
    match = PART.fullmatch(path.name)
    if match is None or int(match["count"]) != count:
        raise ModelError(
            f"{path} is one of {count} parts, and its name does not say which",
            "name the parts as they were made: NAME-00001-of-00003.gguf and so on",
        )
    parts = [path.with_name(f"{match['stem']}-{i:05}-of-{count:05}.gguf") for i in range(1, count + 1)]
    missing = [part.name for part in parts if not part.is_file()]
    if missing:
        raise ModelError(f"{path} is one of {count} parts; missing: {few(missing)}", "fetch all parts")
    headers = [read_header(part) for part in parts]
    for number, part in enumerate(headers):
        if part.metadata.get("split.count") != count or part.metadata.get("split.no") != number:
            raise ModelError(f"{parts[number]} is not part {number + 1} of {count}", HINT)
    tensors = [tensor for part in headers for tensor in part.tensors]
    expected = headers[0].metadata.get("split.tensors.count", len(tensors))
    if not len({tensor.name for tensor in tensors}) == len(tensors) == expected:
        raise ModelError(f"the parts of {path} do not belong together", "fetch all parts anew, from one place")
    return Header(headers[0].metadata, tensors)


def _config(module: ModelFile, header: Header) -> dict[str, Any]:
    """The model file's config, and what only the tensors tell: a tied head, rope factors, rows of the embedding."""
    tensors = {tensor.name: tensor for tensor in header.tensors}
    try:
        config = module.gguf_config(header.metadata)
    except MilepostError:
        raise
    except Exception as error:  # metadata of other types than the architecture's
        raise ModelError("the GGUF metadata does not describe a model of its architecture", HINT) from error
    if not isinstance(config.get("num_hidden_layers"), int):
        raise ModelError("the GGUF metadata does not say how many layers there are", HINT)
    config["tie_word_embeddings"] = "output.weight" not in tensors
    for key, end in getattr(module, "GGUF_FLAGS", {}).items():
        config[key] = any(name.endswith(f".{end}") for name in tensors)
    if not config.get("vocab_size") and "token_embd.weight" in tensors:
        config["vocab_size"] = tensors["token_embd.weight"].shape[0]
    for key, name in (("bos", "bos"), ("eos", "eos"), ("pad", "padding")):
        config[f"{key}_token_id"] = token_id(header.metadata, name)
    if "rope_freqs.weight" in tensors:
        config["rope_scaling"] = _rope_factors(tensors["rope_freqs.weight"], config.get("rope_scaling"))
    return config


def _rope_factors(stored: StoredTensor, scaling: Mapping[str, Any] | None) -> dict[str, Any]:
    """Llama 3.1's rope scaling, which GGUF keeps as a tensor: what each frequency is divided by."""
    if scaling:
        raise ModelError(f"rope factors beside rope scaling {scaling.get('rope_type')!r} are not supported", HINT)
    if len(stored.shape) != 1 or stored.type not in _PLAIN:
        raise ModelError(f"rope_freqs.weight has shape {stored.shape} as {stored.type.name}", HINT)
    return {"rope_type": "freq_factors", "factors": read_tensor(stored, torch.float32).tolist()}


def _generation_config(metadata: Mapping[str, Any]) -> dict[str, Any]:
    found = {key: metadata.get(f"general.sampling.{name}") for key, name in _SAMPLING.items()}
    sampling = {key: value for key, value in found.items() if type(value) in (int, float)}
    return {"eos_token_id": end_token_ids(metadata), **sampling}


def _by_checkpoint_name(
    module: ModelFile,
    architecture: str,
    wanted: Collection[str],
    tensors: Collection[StoredTensor],
    config: Mapping[str, Any],
) -> dict[str, tuple[StoredTensor, ...]]:
    """The stored tensors in their order, each under the name of the parameter that it is or is a part of, or its own.

    The `gguf` package's table leads from a checkpoint's names to stored ones, several to one: the wanted ones decide,
    and what the model file says of them comes first.
    """
    arch = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    table = gguf.get_tensor_name_map(arch, config["num_hidden_layers"])
    own_names = getattr(module, "gguf_names", lambda name, config: ())
    names = {
        name: own_names(name, config) or (table.get_name(name, try_suffixes=(".weight", ".bias")),) for name in wanted
    }
    parameters = {stored: name for name, parts in names.items() for stored in parts}
    by_name = {tensor.name: tensor for tensor in tensors}
    found: dict[str, tuple[StoredTensor, ...]] = {}
    for tensor in tensors:
        name = parameters.get(tensor.name, tensor.name)
        parts = names.get(name, (tensor.name,))
        if all(part in by_name for part in parts):
            found.setdefault(name, tuple(by_name[part] for part in parts))
    return found


def _refuse_types(tensors: Collection[StoredTensor]) -> None:
    """ModelError for a quantisation that the `gguf` package cannot undo (tried on one block of each type)."""
    examples = {tensor.type: tensor.name for tensor in tensors if tensor.type not in _PLAIN}
    for kind, name in examples.items():
        try:
            gguf.dequantize(np.zeros((1, GGML_QUANT_SIZES[kind][1]), np.uint8), kind)
        except NotImplementedError as error:
            raise ModelError(
                f"tensor {name!r} is stored as {kind.name}, which is not supported",
                "use another quantisation of the same model, such as Q8_0 or Q4_K_M",
            ) from error
