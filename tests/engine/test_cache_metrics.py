"""The prefix cache's own counters, as Prometheus reads them."""

from __future__ import annotations

from dataclasses import replace

from prometheus_client import CollectorRegistry

from milepost.cache.memory import Memory
from milepost.cache.prefix_cache import PrefixCache
from milepost.cache.snapshot import KindBytes, snapshot
from milepost.engine.cache_metrics import CacheMetrics


def value(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    return registry.get_sample_value(f"milepost:{name}", {"model_name": "m", **labels})


def test_they_follow_the_cache() -> None:
    cache, registry = PrefixCache(Memory(10_000, 10, 100), num_seqs=1), CollectorRegistry()
    metrics = CacheMetrics("m", registry)
    stats = cache.stats
    stats.matched, stats.checkpoints_made, stats.checkpoints_thinned = 80, 7, 2
    stats.checkpoints_stranded, stats.evicted_blocks = 3, 4
    stats.checkpoints_used, stats.pins_given_up = 6, 1
    stats.misses["diverged"] = 5
    sizes = {"kv": KindBytes(10, 20), "state": KindBytes(30, 40)}
    metrics.load(replace(snapshot(cache), by_kind=sizes))
    metrics.load(replace(snapshot(cache), by_kind=sizes))
    stats.matched, stats.misses["evicted"] = 90, 1
    metrics.load(replace(snapshot(cache), by_kind=sizes, pinned_bytes=50))
    counters = {
        "prefix_cache_matched_tokens_total": 90,
        "checkpoints_made_total": 7,
        "checkpoints_thinned_total": 2,
        "checkpoints_used_total": 6,
        "checkpoints_stranded_total": 3,
        "pins_given_up_total": 1,
        "evicted_blocks_total": 4,
    }
    assert {name: value(registry, name) for name in counters} == counters
    for reason, count in (("diverged", 5), ("evicted", 1), ("no prefix", 0)):
        assert value(registry, "prefix_cache_misses_total", reason=reason) == count
    assert value(registry, "cache_pinned_bytes") == 50
    for kind, used, resident in (("kv", 10, 20), ("state", 30, 40)):
        assert value(registry, "cache_used_bytes", kind=kind) == used
        assert value(registry, "cache_resident_bytes", kind=kind) == resident


def test_a_snapshot_stays_as_it_was() -> None:
    cache = PrefixCache(Memory(10_000, 10, 100), num_seqs=1)
    before = snapshot(cache)
    cache.stats.queries += 5
    cache.stats.misses["evicted"] += 1
    cache.stats.resumed_from["grid"] += 1
    assert (before.stats.queries, before.stats.misses, before.stats.resumed_from) == (0, {}, {})
    assert snapshot(cache).stats.misses == {"evicted": 1}
