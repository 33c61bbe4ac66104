"""What requests that have ended add to vLLM's metrics."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tiny_engine import MakeEngine, add, drain

from milepost.engine.engine import Engine
from milepost.sampling_params import SamplingParams

VLLMS = {
    "cache_config_info", "e2e_request_latency_seconds", "generation_tokens", "inter_token_latency_seconds",
    "iteration_tokens_total", "kv_cache_usage_perc", "num_preemptions", "num_requests_running", "num_requests_waiting",
    "prefix_cache_hits", "prefix_cache_queries", "prompt_tokens", "prompt_tokens_cached", "request_decode_time_seconds",
    "request_generation_tokens", "request_inference_time_seconds", "request_max_num_generation_tokens",
    "request_num_preemptions", "request_params_max_tokens", "request_params_n", "request_prefill_kv_computed_tokens",
    "request_prefill_time_seconds", "request_prompt_tokens", "request_queue_time_seconds", "request_success",
    "request_time_per_output_token_seconds", "time_to_first_token_seconds",
}  # fmt: skip
"""Of vLLM's documented list, those that do not speak of GPUs, adapters, images, drafts or other machines."""


def values(engine: Engine) -> dict[str, float]:
    families = text_string_to_metric_families(engine.metrics.text().decode())
    return {sample.name.removeprefix("vllm:"): sample.value for family in families for sample in family.samples}


def run(engine: Engine, **params: object) -> dict[str, float]:
    """How far the values have gone with one request."""
    before = values(engine)
    add(engine, "a", list(range(50)), SamplingParams(temperature=0, **params))  # type: ignore[arg-type]
    drain(engine)
    return {name: value - before.get(name, 0) for name, value in values(engine).items()}


def test_all_that_vllm_documents_is_there(make_engine: MakeEngine) -> None:
    text = make_engine().metrics.text().decode()
    names = {family.name.removeprefix("vllm:") for family in text_string_to_metric_families(text)}
    assert names >= VLLMS


def test_lengths_and_what_was_asked_for(make_engine: MakeEngine) -> None:
    engine = make_engine()
    told = run(engine, max_tokens=5, n=2)
    assert told["request_prompt_tokens_sum"] == told["prompt_tokens_total"] == 50
    assert told["request_generation_tokens_sum"] == told["generation_tokens_total"] == 10
    assert told["request_max_num_generation_tokens_sum"] == told["request_params_max_tokens_sum"] == 5
    assert (told["request_params_n_sum"], told["request_params_n_count"]) == (2, 1)
    assert (told["request_num_preemptions_sum"], told["request_num_preemptions_count"]) == (0, 1)
    assert (told["request_prefill_kv_computed_tokens_sum"], told["prompt_tokens_cached_total"]) == (50, 0)
    again = run(engine, max_tokens=None, stop_token_ids=list(range(199)))
    assert (again["request_prefill_kv_computed_tokens_sum"], again["prompt_tokens_cached_total"]) == (2, 48)
    assert again["request_params_max_tokens_count"] == 0


def test_times_add_up(make_engine: MakeEngine) -> None:
    """On a clock that only counts."""
    told = run(make_engine(), max_tokens=4)
    queue, prefill, decode = (told[f"request_{name}_time_seconds_sum"] for name in ("queue", "prefill", "decode"))
    assert min(queue, prefill, decode) > 0
    assert queue + prefill == told["time_to_first_token_seconds_sum"]
    assert prefill + decode == told["request_inference_time_seconds_sum"]
    assert decode == told["inter_token_latency_seconds_sum"]
    assert told["request_time_per_output_token_seconds_sum"] == pytest.approx(decode / 3)


def test_what_was_never_reached_is_not_counted(make_engine: MakeEngine) -> None:
    engine = make_engine()
    before = values(engine)
    add(engine, "a", [1, 2, 3], SamplingParams())
    engine.abort("a")
    told = {name: value - before[name] for name, value in values(engine).items() if name in before}
    assert told["e2e_request_latency_seconds_count"] == 1
    assert told["request_prefill_kv_computed_tokens_sum"] == 0
    for name in ("queue", "prefill", "decode", "inference"):
        assert told[f"request_{name}_time_seconds_count"] == 0
    one = run(engine, max_tokens=1)
    assert (one["request_decode_time_seconds_count"], one["request_time_per_output_token_seconds_count"]) == (1, 0)


def test_preemptions(make_engine: MakeEngine) -> None:
    engine = make_engine(num_blocks=12)
    for i in range(4):
        params = SamplingParams(temperature=0, max_tokens=60)
        add(engine, str(i), [i + 1] * 20, params)
    drain(engine)
    told = values(engine)
    assert told["request_num_preemptions_sum"] == told["num_preemptions_total"] > 0
