"""Which file serves which `model_type` and which GGUF architecture. A new model: one file here, one row below."""

from __future__ import annotations

from importlib import import_module
from typing import cast

from milepost.errors import ModelError
from milepost.models.base import ModelFile

MODEL_TYPES = {
    "falcon_h1": "falcon_h1",
    "falcon_mamba": "mamba",
    "gemma3": "gemma3",
    "gemma3_text": "gemma3",
    "granitemoehybrid": "granitemoehybrid",
    "lfm2": "lfm2",
    "llama": "llama",
    "mamba": "mamba",
    "mamba2": "mamba2",
    "mistral": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "qwen3_5": "qwen3_5",
    "qwen3_5_text": "qwen3_5",
    "qwen3_next": "qwen3_next",
}
"""`model_type` of config.json -> module in `milepost.models`."""

GGUF_ARCHITECTURES = {
    "falcon-h1": "falcon_h1",
    "gemma3": "gemma3",
    "granitehybrid": "granitemoehybrid",
    "lfm2": "lfm2",
    "llama": "llama",
    "mamba": "mamba",
    "mamba2": "mamba2",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "qwen35": "qwen3_5",
    "qwen3next": "qwen3_next",
}
"""`general.architecture` of a GGUF file -> module in `milepost.models`."""


def model_file(model_type: str) -> ModelFile:
    """The module for a `model_type`; `ModelError` names the supported ones."""
    return _find(model_type, MODEL_TYPES, "model_type")


def gguf_model_file(architecture: str) -> ModelFile:
    """The module for a GGUF architecture; `ModelError` names the supported ones."""
    return _find(architecture, GGUF_ARCHITECTURES, "GGUF architecture")


def _find(name: str, table: dict[str, str], what: str) -> ModelFile:
    if name not in table:
        raise ModelError(f"unknown {what} {name!r}", f"supported: {', '.join(sorted(table))}")
    return cast(ModelFile, import_module(f"milepost.models.{table[name]}"))
