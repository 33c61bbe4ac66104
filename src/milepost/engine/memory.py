"""How many bytes go to weights, to what sequences carry, and to the cache of keys, values and recurrent states."""

from __future__ import annotations

from dataclasses import dataclass

from milepost.config import EngineConfig
from milepost.errors import ConfigError
from milepost.specs import BLOCK_SIZE, LayerSpecs, checkpoint_bytes, kv_block_bytes, window_bytes

CACHE_SHARE = 0.5
"""Of the free memory, what cache and windows may take unasked: others work on this machine too."""

ENDS_SHARE = 1 / 16
"""Of the budget, what windows of texts' ends may take (`cache/ends.py`). There are no more of them than sequences."""

MAX_BLOCKS = 1 << 21
"""Of a cache whose size nobody asked for: 32 million tokens. A tiny model on a large machine needs no more books."""


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes of the weights; of the cache, which keys and values (in blocks) and recurrent states (checkpoints) share;
    and beside it of each running sequence's window, and of as many more as texts' ends are kept to the token. Then the
    sequences at once and the context that fit.

    `block_bytes` is 0 for a model without KV, `checkpoint_bytes` and `window_bytes` for one without recurrent layers.
    The state of the empty prefix is counted with the windows.
    """

    weight_bytes: int
    cache_bytes: int
    block_bytes: int
    checkpoint_bytes: int
    window_bytes: int
    num_seqs: int
    num_ends: int
    max_model_len: int
    available_bytes: int

    @property
    def fixed_bytes(self) -> int:
        """Of windows and the empty state: there from the start to the end."""
        return (self.num_seqs + self.num_ends) * self.window_bytes + self.checkpoint_bytes

    def line(self) -> str:
        """The start-up line."""
        each = []
        if self.block_bytes:
            each.append(f"{size(self.block_bytes // BLOCK_SIZE)} a token")
        if self.checkpoint_bytes:
            each.append(f"{size(self.checkpoint_bytes)} a recurrent state")
        parts = [f"weights {size(self.weight_bytes)}", f"cache {size(self.cache_bytes)} ({', '.join(each)})"]
        if self.window_bytes:
            parts.append(
                f"{size(self.fixed_bytes)} for {self.num_seqs} running sequences and {self.num_ends} ends of texts"
            )
        parts.append(f"context {self.max_model_len:,} tokens")
        return f"memory: {', '.join(parts)}, free before it {size(self.available_bytes)}"


def plan_memory(
    specs: LayerSpecs,
    element_bytes: int,
    trained_len: int,
    weight_bytes: int,
    available_bytes: int,
    config: EngineConfig,
) -> MemoryPlan:
    """Fits the cache to `available_bytes`, which are free once weights are in; `element_bytes` of KV and window rows.

    The context is what was asked for, or else what the model was trained for, or, failing room, what fits. A context
    that was asked for and does not fit, or no room for a single block, is a `ConfigError`.
    """
    wanted = config.max_model_len or trained_len
    if wanted > trained_len:
        raise ConfigError(
            f"--max-model-len {wanted} is above the model's trained context of {trained_len}",
            f"use at most {trained_len}",
        )
    block, state = kv_block_bytes(specs, element_bytes), checkpoint_bytes(specs, element_bytes)
    window = window_bytes(specs, element_bytes)
    budget = _budget(available_bytes, config) - state
    num_seqs = _num_seqs(window + 2 * state, budget, config)
    num_ends = min(num_seqs, int(budget * ENDS_SHARE) // window) if window and config.enable_prefix_caching else 0
    cache = budget - (num_seqs + num_ends) * window
    if config.kv_cache_memory_bytes is None:
        cache = min(cache, MAX_BLOCKS * (block or state))
    fits = _tokens_that_fit(cache, block, state)
    if fits < wanted and config.max_model_len is not None:
        raise ConfigError(
            f"a context of {wanted} tokens takes {size(-(-wanted // BLOCK_SIZE) * block + 2 * state)} of the cache, "
            f"and there is room for {size(max(cache, 0))}",
            f"use --max-model-len {fits} or less, or give --kv-cache-memory-bytes",
        )
    if fits < BLOCK_SIZE:
        raise ConfigError(
            f"no room for a single block of {size(block)} and two recurrent states of {size(state)}",
            "free some memory, or raise --kv-cache-memory-bytes",
        )
    context = min(wanted, fits)
    return MemoryPlan(weight_bytes, cache, block, state, window, num_seqs, num_ends, context, available_bytes)


def _tokens_that_fit(cache_bytes: int, block_bytes: int, state_bytes: int) -> int:
    """Tokens of one sequence that has the cache for itself: it reads one state while it writes the next."""
    room = cache_bytes - 2 * state_bytes
    if room < 0 or not block_bytes:
        return 0 if room < 0 else 1 << 62
    return room // block_bytes * BLOCK_SIZE


def _num_seqs(seq_bytes: int, budget: int, config: EngineConfig) -> int:
    """Sequences that run at once: as asked, or as many as half of the budget holds the states and windows of."""
    if seq_bytes > budget:
        raise ConfigError(
            f"no room for the recurrent states of one sequence: beside the empty one they take {size(seq_bytes)}, and "
            f"there is room for {size(max(budget, 0))}",
            f"free some memory, or raise --kv-cache-memory-bytes by {size(seq_bytes - budget)} and more",
        )
    return min(config.max_num_seqs, max(1, budget // 2 // seq_bytes)) if seq_bytes else config.max_num_seqs


def _budget(available_bytes: int, config: EngineConfig) -> int:
    """Bytes of cache, windows and the empty state together."""
    asked = config.kv_cache_memory_bytes
    if asked is None:
        return int(available_bytes * CACHE_SHARE)
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
