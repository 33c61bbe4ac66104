"""From a model's name to its weights in place: `open_model`, then `load_model`."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import nn

from milepost.errors import ConfigError, ModelError
from milepost.layers.packing import pack_weights, packed_bytes
from milepost.layers.wide import DecayRates, WideParameter
from milepost.machine import available_memory_bytes
from milepost.models.base import Model
from milepost.models.loader.formats import refuse_stored
from milepost.models.loader.gguf_file import open_gguf
from milepost.models.loader.meta import build_on_meta
from milepost.models.loader.parts import Part, find_parts
from milepost.models.loader.resolve import resolve
from milepost.models.loader.safetensors_folder import open_folder
from milepost.models.loader.source import ModelSource
from milepost.models.loader.wording import few
from milepost.models.registry import model_file
from milepost.ops import Choice, Target, bind

logger = logging.getLogger(__name__)

Progress = Callable[[int, int], None]
"""Called with the bytes of weights in place so far, and of all."""

DTYPES = {
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "half": torch.float16,
    "float32": torch.float32,
    "float": torch.float32,
}
DEFAULT_SAMPLING = {"temperature": 0.0}
"""Of the default model. Its card says 0.2, but in 4 bits so small a model then loses the thread now and again."""

_STORED = {"BF16": torch.bfloat16, "F16": torch.float16}


@dataclass(frozen=True)
class LoadedModel:
    """A model ready to run. `ops` tells which backend computes what; `weight_bytes` is what its weights take."""

    model: Model
    source: ModelSource
    ops: list[Choice]
    dtype: torch.dtype
    weight_bytes: int


def open_model(model: str | None, dtype: str = "auto") -> ModelSource:
    """Finds and opens a model: a folder, a GGUF file, a hub name, or None for the default one.

    Reads no weights. `dtype` is checked at once, before anything is fetched. ConfigError or ModelError.
    """
    _check_dtype(dtype)
    path = resolve(model)
    source = open_folder(path) if path.is_dir() else open_gguf(path)
    model_file(source.model_type)
    if model is None:
        source = replace(source, generation_config={**DEFAULT_SAMPLING, **source.generation_config})
    return source


def resolve_dtype(dtype: str, source: ModelSource) -> torch.dtype:
    """The dtype to run in. "auto" is the checkpoint's own, if that is 16 bits wide, else bfloat16 (as for GGUF)."""
    _check_dtype(dtype)
    if dtype != "auto":
        return DTYPES[dtype]
    if source.format == "gguf":
        return torch.bfloat16
    nested = source.config.get("text_config")
    for config in (source.config, nested if isinstance(nested, dict) else {}):
        named = config.get("dtype") or config.get("torch_dtype")
        if isinstance(named, str) and named in DTYPES:
            return torch.float16 if DTYPES[named] == torch.float16 else torch.bfloat16
    most = Counter(source.tensors.stored_as(name) for name in source.tensors.names()).most_common(1)
    return _STORED.get(most[0][0], torch.bfloat16) if most else torch.bfloat16


def load_model(
    source: ModelSource,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
    *,
    progress: Progress | None = None,
    available_bytes: int | None = None,
    pack: bool = True,
) -> LoadedModel:
    """Builds the model and reads its weights, one tensor at a time.

    `available_bytes` is the memory that the weights must fit (default: what the machine has left). ModelError if they
    do not, if a tensor is missing, has another shape than the config says, or is stored in a format not supported.

    Not `pack`: parameters stay as stored, for those who want to look at them; products pack them anew in each call.
    """
    device = torch.device(device)
    ops, choices = bind(Target(device, dtype))
    model = build_on_meta(source.config, len(source.tensors.names()), ops)
    shares = _shared(model, source)
    wanted = {name: tensor for name, tensor in model.state_dict().items() if name not in shares}
    parts = _find_parts(wanted, source)
    weight_bytes = sum(tensor.numel() for tensor in wanted.values()) * dtype.itemsize
    _check_memory(weight_bytes, _available(device) if available_bytes is None else available_bytes)
    _read(model, parts, source, dtype, device, progress or _silent)
    _tie(model, source, shares)
    for module in model.modules():
        if isinstance(module, DecayRates):
            module.make_rates()
    if pack:
        pack_weights(model, ops)
    model.dtype = dtype
    weight_bytes = packed_bytes(model) + sum(p.numel() * p.element_size() for p in model.parameters())
    return LoadedModel(model, source, choices, dtype, weight_bytes)


def _check_dtype(dtype: str) -> None:
    if dtype != "auto" and dtype not in DTYPES:
        raise ConfigError(f"unknown dtype {dtype!r}", f"choose one of: auto, {', '.join(DTYPES)}")


def _shared(model: Model, source: ModelSource) -> dict[str, str]:
    """Parameters that must take another's tensor: not in the file, and the config ties them or does not say."""
    if source.config.get("tie_word_embeddings") is False:
        return {}
    present, parameters = set(source.tensors.names()), dict(model.named_parameters())
    pairs = model_file(source.model_type).TIED.items()
    return {name: of for name, of in pairs if name in parameters and name not in present}


def _tie(model: Model, source: ModelSource, shares: Mapping[str, str]) -> None:
    """Shares tensors: those of `shares`, and tied ones that the file holds twice, if they are equal (else each counts,
    as in transformers)."""
    parameters = dict(model.named_parameters())
    for name, of in model_file(source.model_type).TIED.items():
        twice = source.config.get("tie_word_embeddings") is True and name in parameters and name not in shares
        if name in shares or (twice and torch.equal(parameters[name], parameters[of])):
            _put(model, name, parameters[of])
    assert not any(tensor.is_meta for tensor in model.state_dict().values()), "a tensor was left without memory"


def _find_parts(wanted: Mapping[str, torch.Tensor], source: ModelSource) -> dict[str, Part]:
    """Which parameter each stored tensor is, or is a part of."""
    other_names = getattr(model_file(source.model_type), "checkpoint_names", lambda name, config: ())
    present = set(source.tensors.names())
    parts, missing = find_parts(wanted, present, partial(other_names, config=source.config))
    if missing:
        raise ModelError(
            f"{source.path} lacks {len(missing)} of the model's tensors: {few(missing)}",
            "the files are incomplete, or belong to another model than the config",
        )
    if source.format == "safetensors":
        for name in parts:
            refuse_stored(name, source.tensors.stored_as(name))
    unexpected = [name for name in source.tensors.names() if name not in parts and not name.endswith("inv_freq")]
    if unexpected:
        logger.info("%d tensors that the model does not use are left out: %s", len(unexpected), few(unexpected))
    return parts


def _available(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return available_memory_bytes()


def _check_memory(weight_bytes: int, available: int) -> None:
    if weight_bytes > available:
        raise ModelError(
            f"the weights take {_gib(weight_bytes)}, and {_gib(available)} of memory are available",
            "free memory, use a smaller model, or a 16-bit dtype (--dtype bfloat16)",
        )


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.2f} GiB" if num_bytes >= 2**27 else f"{num_bytes / 2**20:.2f} MiB"


def _read(
    model: Model,
    parts: Mapping[str, Part],
    source: ModelSource,
    dtype: torch.dtype,
    device: torch.device,
    progress: Progress,
) -> None:
    """Each part from the file into memory of its parameter's own, in `dtype` unless it is wide; the file's copy is
    dropped at once."""
    wanted = model.state_dict()
    done, total = 0, sum(wanted[name].numel() for name in {part.parameter for part in parts.values()}) * dtype.itemsize
    progress(done, total)
    for name, stored in source.tensors.read(parts, dtype):
        part = parts[name]
        expected, found = part.shape(wanted[part.parameter]), tuple(stored.shape)
        if not part.fits(found, wanted[part.parameter]):
            raise ModelError(
                f"tensor {name!r} has shape {found}, and the config says {expected}",
                "the files are damaged, or belong to another model than the config",
            )
        _fill(model, part, stored, dtype, device)
        done += stored.numel() * dtype.itemsize
        progress(done, total)


def _fill(model: Model, part: Part, stored: torch.Tensor, dtype: torch.dtype, device: torch.device) -> None:
    """Puts the stored tensor where it belongs in its parameter, which gets its memory with the first of its parts."""
    parent, _, leaf = part.parameter.rpartition(".")
    tensor: torch.Tensor = getattr(model.get_submodule(parent), leaf)
    if tensor.is_meta:
        tensor = _memory(tensor.shape, torch.float32 if isinstance(tensor, WideParameter) else dtype, device)
        _put(model, part.parameter, tensor)
    tensor.view(part.count, -1)[part.index].copy_(stored.reshape(-1))


def _memory(shape: torch.Size, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    try:
        return torch.empty(shape, dtype=dtype, device=device)
    except RuntimeError as error:  # torch's word for memory that is not there
        raise ModelError(
            f"no memory for a tensor of {_gib(shape.numel() * dtype.itemsize)} on {device}",
            "free memory, or use a smaller model",
        ) from error


def _put(model: Model, name: str, tensor: torch.Tensor) -> None:
    """Replaces the parameter (or buffer) of that name."""
    parent, _, leaf = name.rpartition(".")
    module = model.get_submodule(parent)
    if leaf in module._parameters and not isinstance(tensor, nn.Parameter):
        tensor = nn.Parameter(tensor, requires_grad=False)
    setattr(module, leaf, tensor)


def _silent(done: int, total: int) -> None:
    pass
