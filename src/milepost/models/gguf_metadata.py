"""From GGUF metadata to a config: the keys that all families with attention share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Get = Callable[..., Any]


def getter(metadata: Mapping[str, Any]) -> Get:
    """`get(key, default=None)`: the architecture's own value of `key`."""
    architecture = metadata["general.architecture"]

    def get(key: str, default: Any = None) -> Any:
        return metadata.get(f"{architecture}.{key}", default)

    return get


def attention_config(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Sizes, rope and context under the names of `config.json` (key names: the GGUF specification)."""
    get = getter(metadata)
    return {
        "hidden_size": get("embedding_length"),
        "intermediate_size": get("feed_forward_length"),
        "num_hidden_layers": get("block_count"),
        "num_attention_heads": get("attention.head_count"),
        "num_key_value_heads": get("attention.head_count_kv"),
        "head_dim": get("attention.key_length") or get("rope.dimension_count"),
        "rms_norm_eps": get("attention.layer_norm_rms_epsilon", 1e-5),
        "rope_theta": get("rope.freq_base", 10_000.0),
        "rope_scaling": rope_scaling(get),
        "max_position_embeddings": get("context_length"),
        "sliding_window": get("attention.sliding_window"),
        "vocab_size": vocab_size(metadata),
    }


def vocab_size(metadata: Mapping[str, Any]) -> int:
    """Rows of the embedding: as stated, else the tokens of the vocabulary (0: there is none)."""
    return int(getter(metadata)("vocab_size") or len(metadata.get("tokenizer.ggml.tokens", ())))


def block_names(name: str, *ends: str) -> tuple[str, ...]:
    """GGUF's names of what belongs to the layer of checkpoint name `name`: "blk.3.ssm_dt.bias"."""
    layer = name.partition(".layers.")[2].partition(".")[0]
    return tuple(f"blk.{layer}.{end}" for end in ends)


def rope_scaling(get: Get) -> dict[str, Any] | None:
    """The rope's kind and its settings; None for the plain one."""
    kind = get("rope.scaling.type", "none")
    if kind == "none":
        return None
    return {
        "rope_type": kind,
        "factor": get("rope.scaling.factor", 1.0),
        "original_max_position_embeddings": get("rope.scaling.original_context_length"),
        "beta_fast": get("rope.scaling.yarn_beta_fast"),
        "beta_slow": get("rope.scaling.yarn_beta_slow"),
        "attention_factor": get("rope.scaling.yarn_attn_factor"),
    }
