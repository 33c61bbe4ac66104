"""Counters for Prometheus under vLLM's names, so that its dashboards work unchanged."""

from __future__ import annotations

from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from milepost.cache.prefix_cache import PrefixCache
from milepost.cache.snapshot import CacheSnapshot, snapshot
from milepost.engine.cache_metrics import CacheMetrics
from milepost.engine.request_histograms import LATENCIES, LENGTHS, RequestHistograms
from milepost.engine.request_state import RequestState
from milepost.engine.scheduler import Scheduler, Step
from milepost.specs import BLOCK_SIZE


@dataclass(frozen=True, slots=True)
class Totals:
    """Since the start: prompt tokens computed, tokens generated, prompt tokens looked up in the prefix cache and found
    there. And now: samples that run and that wait, and the share of the cache that is held."""

    prompt: int = 0
    generated: int = 0
    queries: int = 0
    hits: int = 0
    running: int = 0
    waiting: int = 0
    usage: float = 0.0


class Metrics:
    """One engine's counters, in a registry of their own; every sample carries `model_name`."""

    def __init__(self, model_name: str) -> None:
        self.registry = CollectorRegistry()
        self._model_name = model_name
        self.running = self._gauge("num_requests_running", "Samples that run now.")
        self.waiting = self._gauge("num_requests_waiting", "Samples that wait for their first or next step.")
        self.kv_usage = self._gauge(
            "kv_cache_usage_perc", "Share of the cache held by running samples and pins, 0 to 1."
        )
        self.queries = self._counter("prefix_cache_queries", "Prompt tokens looked up in the prefix cache.")
        self.hits = self._counter("prefix_cache_hits", "Prompt tokens found there and not computed again.")
        self.prompt_tokens = self._counter("prompt_tokens", "Prompt tokens of finished requests.")
        self.cached_tokens = self._counter("prompt_tokens_cached", "Of these, not computed again.")
        self.generation_tokens = self._counter("generation_tokens", "Tokens generated.")
        self.preemptions = self._counter("num_preemptions", "Samples put back to make room for others.")
        self.step_tokens = self._histogram("iteration_tokens_total", "Rows of a step.", LENGTHS)
        self.ttft = self._histogram("time_to_first_token_seconds", "From arrival to the first token.", LATENCIES)
        self.itl = self._histogram("inter_token_latency_seconds", "Between two tokens of a request.", LATENCIES)
        self._requests = RequestHistograms(self._histogram)
        self._success = Counter(
            "vllm:request_success", "Finished samples.", ["model_name", "finished_reason"], registry=self.registry
        )
        self.cache = CacheMetrics(model_name, self.registry)
        self.cache_snapshot: CacheSnapshot | None = None
        self._last_token: dict[str, float] = {}
        self.totals = Totals()
        self._num_read = self._num_generated = 0

    def step(self, step: Step) -> None:
        """`step` has run."""
        self.preemptions.inc(len(step.preempted))
        self.step_tokens.observe(sum(piece.end - piece.start for piece in step.pieces))
        ends = (min(piece.end, piece.seq.num_prompt_tokens) - piece.start for piece in step.pieces)
        self._num_read += sum(num for num in ends if num > 0)

    def load(self, scheduler: Scheduler) -> None:
        """What runs, what waits, and what the cache has given so far; `cache_snapshot` is of now."""
        cache = scheduler.cache
        if self.cache_snapshot is None:
            self._tell_settings(cache)
        self.running.set(scheduler.num_running)
        self.waiting.set(scheduler.num_waiting)
        self.kv_usage.set(cache.usage)
        stats, before = cache.stats, self.totals
        self.queries.inc(stats.queries - before.queries)
        self.hits.inc(stats.hits - before.hits)
        self.totals = Totals(
            self._num_read,
            self._num_generated,
            stats.queries,
            stats.hits,
            scheduler.num_running,
            scheduler.num_waiting,
            cache.usage,
        )
        self.cache_snapshot = snapshot(cache)
        self.cache.load(self.cache_snapshot)

    def token(self, state: RequestState, now: float) -> None:
        """A token of `state` came at `now`."""
        self.generation_tokens.inc()
        self._num_generated += 1
        metrics = state.metrics
        if metrics.first_token_time is None:
            metrics.first_token_time = now
            self.ttft.observe(now - metrics.arrival_time)
        else:
            self.itl.observe(now - self._last_token[state.request_id])
        self._last_token[state.request_id] = now

    def finished(self, state: RequestState) -> None:
        """`state` has ended, and its `finished_time` is known."""
        self._requests.observe(state, self._last_token.pop(state.request_id, None))
        self.prompt_tokens.inc(len(state.prompt.ids))
        self.cached_tokens.inc(state.samples[0].seq.num_cached_tokens)
        for sample in state.samples:
            self._success.labels(self._model_name, sample.seq.finish_reason).inc()

    def _tell_settings(self, cache: PrefixCache) -> None:
        """As labels of a gauge that is always 1, as vLLM does; a GPU's blocks are here the cache's."""
        told = {
            "block_size": BLOCK_SIZE,
            "enable_prefix_caching": cache.enabled,
            "kv_cache_memory_bytes": cache.memory.limit_bytes,
            "num_gpu_blocks": cache.memory.blocks.count,
            "prefix_cache_retention_interval": cache.retention.interval,
        }
        about = "What the cache was made with."
        info = Gauge("vllm:cache_config_info", about, ["model_name", *told], registry=self.registry)
        info.labels(self._model_name, *map(str, told.values())).set(1)

    def text(self) -> bytes:
        """Prometheus's text format."""
        return generate_latest(self.registry)

    def _gauge(self, name: str, about: str) -> Gauge:
        return Gauge(f"vllm:{name}", about, ["model_name"], registry=self.registry).labels(self._model_name)

    def _counter(self, name: str, about: str) -> Counter:
        return Counter(f"vllm:{name}", about, ["model_name"], registry=self.registry).labels(self._model_name)

    def _histogram(self, name: str, about: str, buckets: tuple[float, ...]) -> Histogram:
        histogram = Histogram(f"vllm:{name}", about, ["model_name"], registry=self.registry, buckets=buckets)
        return histogram.labels(self._model_name)
