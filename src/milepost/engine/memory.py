"""How the machine's memory is shared out at start: weights are in, the rest is fitted to what is left."""

from __future__ import annotations

from dataclasses import dataclass

from milepost.config import EngineConfig
from milepost.errors import ConfigError
from milepost.specs import BLOCK_SIZE, LayerSpecs, checkpoint_bytes, kv_block_bytes, window_bytes

MAX_FREE_BLOCKS = 1 << 18
"""Blocks of a model without KV: they cost no memory but their bookkeeping, and 4 million tokens at once are enough."""

KV_SHARE = 0.5
"""Of the free memory, what KV and states may take unasked: others work on this machine too."""


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes of weights, KV and recurrent states; the KV blocks they make, the context and the sequences that fit.

    `seq_bytes` are the recurrent states of one running sequence, 0 for a model that has none. A model without KV has
    `block_bytes` 0; its sequences are still counted in blocks.
    """

    weight_bytes: int
    block_bytes: int
    num_blocks: int
    seq_bytes: int
    empty_bytes: int
    num_seqs: int
    max_model_len: int
    available_bytes: int

    @property
    def kv_bytes(self) -> int:
        return self.num_blocks * self.block_bytes

    @property
    def state_bytes(self) -> int:
        """Of all sequences, and of the empty prefix."""
        return self.num_seqs * self.seq_bytes + self.empty_bytes

    def line(self) -> str:
        """The start-up line."""
        parts = [f"weights {size(self.weight_bytes)}"]
        if self.seq_bytes:
            parts.append(f"states {size(self.state_bytes)} for {self.num_seqs} sequences")
        if self.block_bytes:
            tokens = self.num_blocks * BLOCK_SIZE
            parts.append(
                f"KV cache {size(self.kv_bytes)} for {tokens:,} tokens ({size(self.block_bytes // BLOCK_SIZE)} each, "
                f"{tokens / self.max_model_len:.1f} x the context of {self.max_model_len:,})"
            )
        return f"memory: {', '.join(parts)}, free before it {size(self.available_bytes)}"


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
    block_bytes, empty_bytes = kv_block_bytes(specs, element_bytes), checkpoint_bytes(specs, element_bytes)
    seq_bytes = 2 * empty_bytes + window_bytes(specs, element_bytes)
    blocks_for_one = -(-wanted // BLOCK_SIZE)
    budget = _budget(available_bytes, config) - empty_bytes
    num_seqs = _num_seqs(seq_bytes, budget if block_bytes == 0 else budget // 2, budget, config)
    if block_bytes == 0:
        num_blocks = max(blocks_for_one, min(MAX_FREE_BLOCKS, num_seqs * blocks_for_one))
        return MemoryPlan(weight_bytes, 0, num_blocks, seq_bytes, empty_bytes, num_seqs, wanted, available_bytes)
    room = (budget - num_seqs * seq_bytes) // block_bytes
    num_blocks = room if config.kv_cache_memory_bytes is not None else min(room, num_seqs * blocks_for_one)
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
    return MemoryPlan(weight_bytes, block_bytes, num_blocks, seq_bytes, empty_bytes, num_seqs, context, available_bytes)


def _num_seqs(seq_bytes: int, share: int, budget: int, config: EngineConfig) -> int:
    """Sequences that run at once: as asked, or as many as `share` of the budget holds the recurrent states of."""
    if seq_bytes > budget:
        raise ConfigError(
            f"no room for the recurrent states of one sequence: they take {size(seq_bytes)} of {size(budget)}",
            "free some memory, or raise --kv-cache-memory-bytes",
        )
    return min(config.max_num_seqs, max(1, share // seq_bytes)) if seq_bytes else config.max_num_seqs


def _budget(available_bytes: int, config: EngineConfig) -> int:
    """Bytes for KV and recurrent states together."""
    asked = config.kv_cache_memory_bytes
    if asked is None:
        return int(available_bytes * KV_SHARE)
    if asked > available_bytes:
        raise ConfigError(
            f"--kv-cache-memory-bytes asks for {size(asked)}, but only {size(available_bytes)} are free",
            f"use at most {available_bytes}, or leave it out",
        )
    return asked


def size(num_bytes: float) -> str:
    """Bytes for people: 1.5 GiB."""
    for unit in ("B", "KiB", "MiB"):
        if num_bytes < 1024:
            return f"{num_bytes:.4g} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:,.1f} GiB"
