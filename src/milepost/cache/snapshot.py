"""What the cache holds, at a moment, in numbers: for whoever may not touch it while it changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from milepost.cache.prefix_cache import PrefixCache
from milepost.cache.stats import CacheStats
from milepost.specs import BLOCK_SIZE


@dataclass(frozen=True, slots=True)
class KindBytes:
    """Bytes of keys and values, or of recurrent states. `used`: of sequences and of known prefixes. `resident`: these
    and what is free but still has its pages."""

    used: int
    resident: int


@dataclass(frozen=True, slots=True)
class CacheSnapshot:
    """`enabled`, `interval` (see `Retention`), `unit` (tokens between places where a sequence can resume): the policy.
    `available_bytes`: of `limit_bytes`, those that no running sequence holds and that are not pinned. `token_bytes`: of
    the keys and values of one token; `checkpoint_bytes`: of one recurrent state. `by_kind`: "kv" and "state"."""

    enabled: bool
    has_states: bool
    interval: int | None
    unit: int
    limit_bytes: int
    available_bytes: int
    pinned_bytes: int
    token_bytes: int
    checkpoint_bytes: int
    by_kind: Mapping[str, KindBytes]
    num_known_tokens: int
    num_checkpoints: int
    stats: CacheStats


def snapshot(cache: PrefixCache) -> CacheSnapshot:
    """O(1) in what the cache holds. Whoever calls it owns the cache."""
    memory, stats = cache.memory, cache.stats
    sides = {"kv": (memory.blocks, memory.block_bytes), "state": (memory.slots, memory.checkpoint_bytes)}
    return CacheSnapshot(
        enabled=cache.enabled,
        has_states=cache.has_states,
        interval=cache.retention.interval,
        unit=cache.unit,
        limit_bytes=memory.limit_bytes,
        available_bytes=cache.available_bytes,
        pinned_bytes=cache.pins.num_bytes,
        token_bytes=memory.block_bytes // BLOCK_SIZE,
        checkpoint_bytes=memory.checkpoint_bytes,
        by_kind={
            kind: KindBytes(ids.num_used * size, (ids.num_used + len(ids.warm)) * size)
            for kind, (ids, size) in sides.items()
        },
        num_known_tokens=cache.num_cached_tokens,
        num_checkpoints=cache.num_checkpoints,
        stats=replace(stats, resumed_from=stats.resumed_from.copy(), misses=stats.misses.copy()),
    )
