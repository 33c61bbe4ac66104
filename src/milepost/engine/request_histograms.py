"""What a request that has ended adds to vLLM's histograms: its times, its lengths and what it asked for."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import Histogram

from milepost.engine.request_state import RequestState

LATENCIES = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640)
LENGTHS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000)
SAMPLES = (1, 2, 5, 10, 20)
PREEMPTIONS = (0, 1, 2, 3, 4, 5, 10, 20)

TIMES = {
    "e2e_request_latency_seconds": "From arrival to the end.",
    "request_queue_time_seconds": "From arrival to the first step.",
    "request_prefill_time_seconds": "From the first step to the first token.",
    "request_decode_time_seconds": "From the first token to the last.",
    "request_inference_time_seconds": "From the first step to the last token.",
    "request_time_per_output_token_seconds": "Of decoding, for each token after the first of the longest sample.",
}

COUNTS = {
    "request_prompt_tokens": ("Prompt tokens of a request.", LENGTHS),
    "request_prefill_kv_computed_tokens": ("Of these, computed.", LENGTHS),
    "request_generation_tokens": ("Tokens generated for a sample.", LENGTHS),
    "request_max_num_generation_tokens": ("Tokens of the longest sample of a request.", LENGTHS),
    "request_params_max_tokens": ("The max_tokens of a request.", LENGTHS),
    "request_params_n": ("The n of a request.", SAMPLES),
    "request_num_preemptions": ("How often samples of a request were put back.", PREEMPTIONS),
}

MakeHistogram = Callable[[str, str, tuple[float, ...]], Histogram]
"""Of a name, what it is about, and its buckets."""


class RequestHistograms:
    def __init__(self, make: MakeHistogram) -> None:
        times = {name: make(name, about, LATENCIES) for name, about in TIMES.items()}
        self._of = times | {name: make(name, about, buckets) for name, (about, buckets) in COUNTS.items()}

    def observe(self, state: RequestState, last_token_time: float | None) -> None:
        """`state` has ended. A time that it has not come to is not counted."""
        for name, seconds in _times(state, last_token_time).items():
            if seconds is not None:
                self._of[name].observe(seconds)
        first = state.samples[0].seq
        has_begun = first.first_scheduled_time is not None
        lengths = [sample.seq.num_output_tokens for sample in state.samples]
        counts = {
            "request_prompt_tokens": len(state.prompt.ids),
            "request_prefill_kv_computed_tokens": len(state.prompt.ids) - first.num_cached_tokens if has_begun else 0,
            "request_max_num_generation_tokens": max(lengths),
            "request_params_n": state.params.n,
            "request_num_preemptions": sum(sample.seq.num_preemptions for sample in state.samples),
        }
        for name, count in counts.items():
            self._of[name].observe(count)
        for length in lengths:
            self._of["request_generation_tokens"].observe(length)
        if state.params.max_tokens is not None:
            self._of["request_params_max_tokens"].observe(state.params.max_tokens)


def _times(state: RequestState, last_token: float | None) -> dict[str, float | None]:
    told = state.metrics
    arrival, first_step, first_token = told.arrival_time, told.first_scheduled_time, told.first_token_time
    decode = _between(first_token, last_token)
    longest = max(sample.seq.num_output_tokens for sample in state.samples)
    return {
        "e2e_request_latency_seconds": _between(arrival, told.finished_time),
        "request_queue_time_seconds": _between(arrival, first_step),
        "request_prefill_time_seconds": _between(first_step, first_token),
        "request_decode_time_seconds": decode,
        "request_inference_time_seconds": _between(first_step, last_token),
        "request_time_per_output_token_seconds": decode / (longest - 1) if decode is not None and longest > 1 else None,
    }


def _between(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else end - start
