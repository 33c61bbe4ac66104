"""A tiny random model on disk twice, as transformers saves it and in GGUF: both must give the same logits."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import gguf
import torch
import transformers
from parity import difference, prompt_of

from milepost.engine.plain import logits_of
from milepost.models.base import Model
from milepost.models.loader.load import load_model, open_model

Converted = Iterable[tuple[str, torch.Tensor]]
Conversion = Callable[[str, torch.Tensor], Converted]
"""A checkpoint's tensor to what a GGUF converter stores of it: tensors under a checkpoint's names, or GGUF's own."""


def unchanged(name: str, tensor: torch.Tensor) -> Converted:
    yield name, tensor


def attention_metadata(config: transformers.PretrainedConfig) -> dict[str, Any]:
    """What converters write for every model with attention, without the architecture's name before it."""
    head_dim = getattr(config, "head_dim", None)
    lengths = {"attention.key_length": head_dim, "attention.value_length": head_dim} if head_dim else {}
    return {
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "block_count": config.num_hidden_layers,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        **lengths,
    }


def check_gguf_twin(
    folder: Path,
    theirs: transformers.PreTrainedModel,
    architecture: str,
    metadata: Mapping[str, Any],
    convert: Conversion = unchanged,
    tolerance: float = 0.0,
) -> Model:
    """Writes `theirs` both ways below `folder`, loads both and compares their logits; returns the model from GGUF.

    `tolerance` is relative, for conversions that round; 0 asks for equal bits.
    """
    theirs.save_pretrained(folder / "twin")
    write_gguf(folder / "model.gguf", theirs, architecture, metadata, convert)
    twin, ours = (load_model(open_model(str(folder / name)), torch.float32).model for name in ("twin", "model.gguf"))
    prompt = prompt_of(twin.vocab_size)
    expected, found = logits_of(twin, prompt), logits_of(ours, prompt)
    assert torch.equal(found, expected) if tolerance == 0 else difference(found, expected) < tolerance
    return ours


def write_gguf(
    path: Path,
    theirs: transformers.PreTrainedModel,
    architecture: str,
    metadata: Mapping[str, Any],
    convert: Conversion = unchanged,
) -> None:
    """All tensors in fp32; those that share another's memory are left out, as converters do."""
    arch = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    table = gguf.get_tensor_name_map(arch, theirs.config.num_hidden_layers)
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in metadata.items():
        writer.add_key_value(f"{architecture}.{key}", value, gguf.GGUFValueType.get_type(value))
    for name, parameter in theirs.named_parameters():
        for stored, tensor in convert(name, parameter.detach()):
            place = table.get_name(stored, try_suffixes=(".weight", ".bias")) or stored
            writer.add_tensor(place, tensor.float().contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
