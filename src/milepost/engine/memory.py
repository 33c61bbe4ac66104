"""How the machine's memory is shared out at start: weights are in, the rest is fitted to what is left."""

from __future__ import annotations

from dataclasses import dataclass

from milepost.config import EngineConfig
from milepost.errors import ConfigError
from milepost.specs import BLOCK_SIZE, LayerSpecs, kv_block_bytes

KV_SHARE = 0.5
"""Of the free memory, what KV may take unasked: others work on this machine too."""


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes of weights and KV, the KV blocks they make, and the context that fits them."""

    weight_bytes: int
    block_bytes: int
    num_blocks: int
    max_model_len: int
    available_bytes: int

    @property
    def kv_bytes(self) -> int:
        return self.num_blocks * self.block_bytes

    def line(self) -> str:
        """The start-up line."""
        tokens = self.num_blocks * BLOCK_SIZE
        return (
            f"memory: weights {size(self.weight_bytes)}, KV cache {size(self.kv_bytes)} for {tokens:,} tokens "
            f"({size(self.block_bytes // BLOCK_SIZE)} each, {tokens / self.max_model_len:.1f} x the context of "
            f"{self.max_model_len:,}), free before it {size(self.available_bytes)}"
        )


def plan_memory(
    specs: LayerSpecs,
    element_bytes: int,
    trained_len: int,
    weight_bytes: int,
    available_bytes: int,
    config: EngineConfig,
) -> MemoryPlan:
    """Fits KV blocks and context; raises `ConfigError` when what was asked for cannot fit.

    `available_bytes` is what is free with the weights loaded. Asked lengths are kept or refused; a length that nobody
    asked for shrinks to what fits.
    """
    wanted = config.max_model_len or trained_len
    if wanted > trained_len:
        raise ConfigError(
            f"--max-model-len {wanted} is above the model's trained context of {trained_len}",
            f"use at most {trained_len}",
        )
    block_bytes = max(kv_block_bytes(specs, element_bytes), 1)
    blocks_for_one = -(-wanted // BLOCK_SIZE)
    num_blocks = _num_blocks(block_bytes, blocks_for_one, available_bytes, config)
    if num_blocks < blocks_for_one and config.max_model_len is not None:
        raise ConfigError(
            f"a context of {wanted:,} needs {size(blocks_for_one * block_bytes)} of KV cache, "
            f"but there is room for {size(num_blocks * block_bytes)}",
            f"use --max-model-len {num_blocks * BLOCK_SIZE} or less, or give --kv-cache-memory-bytes",
        )
    if num_blocks < 1:
        raise ConfigError(
            f"no room for a KV cache: {size(available_bytes)} are free and one block takes {size(block_bytes)}",
            "free some memory, or raise --kv-cache-memory-bytes",
        )
    context = min(wanted, num_blocks * BLOCK_SIZE)
    return MemoryPlan(weight_bytes, block_bytes, num_blocks, context, available_bytes)


def _num_blocks(block_bytes: int, blocks_for_one: int, available_bytes: int, config: EngineConfig) -> int:
    asked = config.kv_cache_memory_bytes
    if asked is None:
        return min(int(available_bytes * KV_SHARE) // block_bytes, config.max_num_seqs * blocks_for_one)
    if asked > available_bytes:
        raise ConfigError(
            f"--kv-cache-memory-bytes asks for {size(asked)}, but only {size(available_bytes)} are free",
            f"use at most {available_bytes}, or leave it out",
        )
    return asked // block_bytes


def size(num_bytes: float) -> str:
    """Bytes for people: 1.5 GiB."""
    for unit in ("B", "KiB", "MiB"):
        if num_bytes < 1024:
            return f"{num_bytes:.4g} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:,.1f} GiB"
