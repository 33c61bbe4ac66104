"""A random llama that reads and writes bytes: it has text, and says nothing that anybody could expect."""

from __future__ import annotations

import dataclasses

import tokenizers
import torch
from tokenizers import decoders, models, pre_tokenizers

from milepost.config import EngineConfig
from milepost.engine.async_llm import AsyncLLM
from milepost.engine.build import assemble
from milepost.models.loader.load import load_model
from milepost.models.loader.random_weights import random_source
from milepost.models.loader.source import TokenizerSource

CONFIG = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 300,
    "max_position_embeddings": 1024,
    "initializer_range": 0.2,
}


def byte_tokenizer() -> tokenizers.Tokenizer:
    """Each byte a token, 0 to 255."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = tokenizers.Tokenizer(models.BPE(vocab={text: i for i, text in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return backend


def running_llama(tokenizer: TokenizerSource, eos: str, **config: object) -> AsyncLLM:
    """`config`: of the model, where it is to differ. The caller shuts it down."""
    source = dataclasses.replace(
        random_source({**CONFIG, **config}, "tiny"),
        tokenizer=tokenizer,
        generation_config={"eos_token_id": tokenizer.backend.token_to_id(eos)},
    )
    settings = EngineConfig(kv_cache_memory_bytes=32 * 2**20, max_num_seqs=8)
    return AsyncLLM(assemble(load_model(source, torch.float32), settings))
