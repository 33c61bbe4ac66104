"""Checkpoint formats that cannot be run yet, refused by name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from milepost.errors import ModelError

FLOATS = frozenset({"BF16", "F16", "F32", "F64"})
"""Formats of safetensors that can be loaded, as safetensors spells them."""

SETTINGS_FILES = {"quantize_config.json": "gptq", "quant_config.json": "awq", "hf_quant_config.json": "modelopt"}
"""Files beside config.json in which older tools keep the settings of their format."""

HINT = "use the same model in bf16, fp16 or fp32, or as a GGUF file"


def refuse_quantized(config: Mapping[str, Any], folder: Path) -> None:
    """ModelError if the config, or a file beside it, says that the weights are quantised."""
    text_config = config.get("text_config")
    for part in (config, text_config if isinstance(text_config, dict) else {}):
        for key in ("quantization_config", "compression_config", "quantization"):
            if part.get(key):
                raise _unsupported(_method(part[key], key))
    for name, method in SETTINGS_FILES.items():
        if (folder / name).is_file():
            raise _unsupported(method)


def refuse_stored(name: str, stored: str) -> None:
    """ModelError if tensor `name`, stored in the format `stored`, is not plain floating point."""
    if stored not in FLOATS:
        raise ModelError(f"tensor {name!r} is stored as {stored}, which is not supported yet", HINT)


def _unsupported(method: str) -> ModelError:
    return ModelError(f"quantisation format {method!r} is not supported yet", HINT)


def _method(settings: Any, key: str) -> str:
    if not isinstance(settings, dict):
        return str(settings)
    if key == "quantization" and "quant_method" not in settings:
        return "mlx"
    found = settings.get("quant_method") or settings.get("quant_algo") or settings.get("format")
    return str(found) if found else f"unknown: {json.dumps(settings)[:80]}"
