"""Counters for Prometheus under vLLM's names, so that its dashboards work unchanged."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from milepost.cache.snapshot import CacheSnapshot, snapshot
from milepost.engine.cache_metrics import CacheMetrics
from milepost.engine.request_state import RequestState
from milepost.engine.scheduler import Scheduler, Step

LATENCIES = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640)
LENGTHS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000)


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
        self.generation_tokens = self._counter("generation_tokens", "Tokens generated.")
        self.preemptions = self._counter("num_preemptions", "Samples put back to make room for others.")
        self.step_tokens = self._histogram("iteration_tokens_total", "Rows of a step.", LENGTHS)
        self.ttft = self._histogram("time_to_first_token_seconds", "From arrival to the first token.", LATENCIES)
        self.itl = self._histogram("inter_token_latency_seconds", "Between two tokens of a request.", LATENCIES)
        self.e2e = self._histogram("e2e_request_latency_seconds", "From arrival to the end.", LATENCIES)
        self.queue_time = self._histogram("request_queue_time_seconds", "From arrival to the first step.", LATENCIES)
        self.prompt_length = self._histogram("request_prompt_tokens", "Prompt tokens of a request.", LENGTHS)
        self.output_length = self._histogram("request_generation_tokens", "Tokens generated for a request.", LENGTHS)
        self._success = Counter(
            "vllm:request_success", "Finished samples.", ["model_name", "finished_reason"], registry=self.registry
        )
        self.cache = CacheMetrics(model_name, self.registry)
        self.cache_snapshot: CacheSnapshot | None = None
        self._last_token: dict[str, float] = {}
        self._seen_queries = self._seen_hits = 0

    def step(self, step: Step) -> None:
        """`step` has run."""
        self.preemptions.inc(len(step.preempted))
        self.step_tokens.observe(sum(piece.end - piece.start for piece in step.pieces))

    def load(self, scheduler: Scheduler) -> None:
        """What runs, what waits, and what the cache has given so far; `cache_snapshot` is of now."""
        cache = scheduler.cache
        self.running.set(scheduler.num_running)
        self.waiting.set(scheduler.num_waiting)
        self.kv_usage.set(cache.usage)
        self.queries.inc(cache.stats.queries - self._seen_queries)
        self.hits.inc(cache.stats.hits - self._seen_hits)
        self._seen_queries, self._seen_hits = cache.stats.queries, cache.stats.hits
        self.cache_snapshot = snapshot(cache)
        self.cache.load(self.cache_snapshot)

    def token(self, state: RequestState, now: float) -> None:
        """A token of `state` came at `now`."""
        self.generation_tokens.inc()
        metrics = state.metrics
        if metrics.first_token_time is None:
            metrics.first_token_time = now
            self.ttft.observe(now - metrics.arrival_time)
        else:
            self.itl.observe(now - self._last_token[state.request_id])
        self._last_token[state.request_id] = now

    def finished(self, state: RequestState) -> None:
        metrics = state.metrics
        self._last_token.pop(state.request_id, None)
        self.prompt_tokens.inc(len(state.prompt.ids))
        self.prompt_length.observe(len(state.prompt.ids))
        if metrics.finished_time is not None:
            self.e2e.observe(metrics.finished_time - metrics.arrival_time)
        if metrics.first_scheduled_time is not None:
            self.queue_time.observe(metrics.first_scheduled_time - metrics.arrival_time)
        for sample in state.samples:
            self.output_length.observe(sample.seq.num_output_tokens)
            self._success.labels(self._model_name, sample.seq.finish_reason).inc()

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
