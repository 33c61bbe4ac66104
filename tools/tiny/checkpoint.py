"""The folder that `milepost` and transformers load: config, weights in bf16, tokenizer, chat template."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer

from tools.tiny.model import TinyModel
from tools.tiny.tokenizer import END, PAD, save_tokenizer, token_id

NARROW = torch.bfloat16


def save_checkpoint(model: TinyModel, tokenizer: Tokenizer, folder: Path, dtype: torch.dtype = NARROW) -> None:
    """Writes the folder; all tensors in `dtype`."""
    eos, pad = token_id(tokenizer, END), token_id(tokenizer, PAD)
    save_tokenizer(tokenizer, folder, model.shape.max_length)
    _write_json(folder / "config.json", model.shape.config(eos, pad))
    _write_json(folder / "generation_config.json", {"do_sample": False, "eos_token_id": eos, "pad_token_id": pad})
    tensors = {name: tensor.detach().to(dtype).contiguous() for name, tensor in model.state_dict().items()}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)  # safetensors lets the owner alone read it


def _write_json(path: Path, content: dict[str, object]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
