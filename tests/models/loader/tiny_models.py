"""Tiny llamas on disk, as transformers saves them and as GGUF files of the same weights."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import transformers
from tokenizers import pre_tokenizers

CONTROL, USER_DEFINED = 3, 4
SPECIAL = ("<|begin|>", "<|end|>", "<|turn|>")
MERGES = ("h e", "l l", "he ll", "hell o", "Ġ w", "o r", "Ġw or", "l d", "Ġwor ld")
TOKENS = [
    *sorted(pre_tokenizers.ByteLevel.alphabet()),
    *(merge.replace(" ", "") for merge in MERGES),
    *SPECIAL,
    "<think>",
]
"""A byte-level vocabulary in which "hello world" is two tokens."""
VOCAB_SIZE = len(TOKENS)
BOS, END, TURN, THINK = range(VOCAB_SIZE - 4, VOCAB_SIZE)


def tiny_llama(dtype: torch.dtype = torch.float32, **settings: Any) -> torch.nn.Module:
    """A llama of random weights; `settings` are those of LlamaConfig."""
    shape = {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": VOCAB_SIZE,
        "max_position_embeddings": 256,
        "initializer_range": 0.2,
        "bos_token_id": BOS,
        "eos_token_id": END,
    }
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**{**shape, **settings})
    return transformers.AutoModelForCausalLM.from_config(config, dtype=dtype).eval()


def tokenizer_metadata(**changes: Any) -> dict[str, Any]:
    """The metadata of the tokenizer of `TOKENS`, keys without "tokenizer."; a change to None leaves a key out."""
    types = [CONTROL if token in SPECIAL else USER_DEFINED if token == "<think>" else 1 for token in TOKENS]
    metadata = {
        "ggml.model": "gpt2",
        "ggml.pre": "gpt-2",
        "ggml.tokens": TOKENS,
        "ggml.token_type": types,
        "ggml.merges": list(MERGES),
        "ggml.bos_token_id": BOS,
        "ggml.eos_token_id": END,
        "ggml.eot_token_id": TURN,
        "chat_template": "{{ messages[0].content }}",
    }
    metadata |= {key.replace("__", "."): value for key, value in changes.items()}
    return {f"tokenizer.{key}": value for key, value in metadata.items() if value is not None}


def to_pairs(weight: np.ndarray, num_heads: int) -> np.ndarray:
    """q and k as GGUF wants them: the two halves of each head interleaved."""
    halves = weight.reshape(num_heads, 2, weight.shape[0] // num_heads // 2, *weight.shape[1:])
    return halves.swapaxes(1, 2).reshape(weight.shape)


def gguf_tensors(model: torch.nn.Module) -> dict[str, np.ndarray]:
    """The weights of a transformers llama in fp32 under GGUF's names."""
    config = model.config
    table = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    tensors = {}
    for name, parameter in model.named_parameters():
        values = parameter.detach().float().numpy()
        if ".q_proj." in name:
            values = to_pairs(values, config.num_attention_heads)
        if ".k_proj." in name:
            values = to_pairs(values, config.num_key_value_heads)
        tensors[table.get_name(name, try_suffixes=(".weight", ".bias"))] = values
    return tensors


def write_gguf(
    path: Path,
    model: torch.nn.Module,
    kind_of: Callable[[str], gguf.GGMLQuantizationType] = lambda name: gguf.GGMLQuantizationType.F32,
    tokenizer: Mapping[str, Any] | None = None,
    metadata: Mapping[str, Any] | None = None,
    extra: Mapping[str, np.ndarray] | None = None,
    tensors: Mapping[str, np.ndarray] | None = None,
    architecture: str = "llama",
) -> Path:
    """Writes a GGUF file of `model`. `kind_of` names the quantisation of each tensor of two dimensions."""
    config = model.config
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(config.vocab_size)
    for key, value in {**(tokenizer_metadata() if tokenizer is None else tokenizer), **(metadata or {})}.items():
        add_value(writer, key, value)
    tensors = gguf_tensors(model) if tensors is None else tensors
    for name, values in {**tensors, **(extra or {})}.items():
        kind = kind_of(name) if values.ndim == 2 else gguf.GGMLQuantizationType.F32
        writer.add_tensor(name, gguf.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add_value(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)
