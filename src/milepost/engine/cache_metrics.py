"""What the prefix cache counts and vLLM has no name for: `milepost:...`."""

from __future__ import annotations

from typing import get_args

from prometheus_client import CollectorRegistry, Counter, Gauge

from milepost.cache.snapshot import CacheSnapshot
from milepost.request import MissReason

COUNTERS = {
    "prefix_cache_matched_tokens": "Prompt tokens whose keys and values were found, resumed or not.",
    "checkpoints_made": "Recurrent states kept for others.",
    "checkpoints_used": "Of these, resumed from once or more.",
    "checkpoints_thinned": "Recurrent states given up alone: their keys and values stayed.",
    "checkpoints_stranded": "Recurrent states lost because their keys and values were given up; none outlives them.",
    "pins_given_up": "Pinned prefixes that made room for a request which could not run otherwise.",
    "evicted_blocks": "Blocks of known prefixes given up for others.",
}


class CacheMetrics:
    """Follows the cache's own counters; `load` brings Prometheus's up to them."""

    def __init__(self, model_name: str, registry: CollectorRegistry) -> None:
        self._model_name = model_name
        self._counters = {
            name: Counter(f"milepost:{name}", about, ["model_name"], registry=registry).labels(model_name)
            for name, about in COUNTERS.items()
        }
        misses = Counter(
            "milepost:prefix_cache_misses",
            "Samples that did not resume all of a known prefix, by reason.",
            ["model_name", "reason"],
            registry=registry,
        )
        self._misses = {reason: misses.labels(model_name, reason) for reason in get_args(MissReason)}
        self._used = self._bytes("cache_used_bytes", "Of running samples and known prefixes, by kind.", registry)
        self._resident = self._bytes("cache_resident_bytes", "With pages in memory, by kind.", registry)
        about = "Of prefixes that are pinned; what two share counts once."
        self._pinned = Gauge("milepost:cache_pinned_bytes", about, ["model_name"], registry=registry).labels(model_name)
        self._seen: dict[str, int] = {}

    def load(self, cache: CacheSnapshot) -> None:
        stats = cache.stats
        totals = {
            "prefix_cache_matched_tokens": stats.matched,
            "checkpoints_made": stats.checkpoints_made,
            "checkpoints_used": stats.checkpoints_used,
            "checkpoints_thinned": stats.checkpoints_thinned,
            "checkpoints_stranded": stats.checkpoints_stranded,
            "pins_given_up": stats.pins_given_up,
            "evicted_blocks": stats.evicted_blocks,
        }
        for name, counter in self._counters.items():
            self._follow(counter, name, totals[name])
        for reason, counter in self._misses.items():
            self._follow(counter, reason, stats.misses[reason])
        self._pinned.set(cache.pinned_bytes)
        for kind, size in cache.by_kind.items():
            self._used[kind].set(size.used)
            self._resident[kind].set(size.resident)

    def _follow(self, counter: Counter, name: str, total: int) -> None:
        seen = self._seen.get(name, 0)
        if total != seen:
            counter.inc(total - seen)
            self._seen[name] = total

    def _bytes(self, name: str, about: str, registry: CollectorRegistry) -> dict[str, Gauge]:
        gauge = Gauge(f"milepost:{name}", about, ["model_name", "kind"], registry=registry)
        return {kind: gauge.labels(self._model_name, kind) for kind in ("kv", "state")}
