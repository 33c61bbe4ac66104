"""What a server's counters say of a stretch of time."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

METRICS = {
    "running": "vllm:num_requests_running",
    "waiting": "vllm:num_requests_waiting",
    "rows": "vllm:iteration_tokens_total_sum",
    "generated": "vllm:generation_tokens_total",
    "first_tokens": "vllm:time_to_first_token_seconds_count",
    "first_token_s": "vllm:time_to_first_token_seconds_sum",
    "gaps": "vllm:inter_token_latency_seconds_count",
    "gap_s": "vllm:inter_token_latency_seconds_sum",
    "preempted": "vllm:num_preemptions_total",
}
"""What is read of /metrics, added up over labels."""

FINISHED = "vllm:request_success_total"


@dataclass(frozen=True)
class Look:
    """Counters at `time`, in seconds of any clock: what `METRICS` names, samples that ended by reason, GET /cache."""

    time: float
    counts: dict[str, float]
    finished: dict[str, float]
    cache: dict[str, Any]


def read(now: float, metrics: str, cache: dict[str, Any]) -> Look:
    """Of Prometheus's text. KeyError for one without our names, ValueError for what is none."""
    from prometheus_client.parser import text_string_to_metric_families

    totals: Counter[str] = Counter()
    finished: Counter[str] = Counter()
    for family in text_string_to_metric_families(metrics):
        for sample in family.samples:
            totals[sample.name] += sample.value  # type: ignore[assignment]  # counters of floats
            if sample.name == FINISHED:
                finished[sample.labels["finished_reason"]] += sample.value  # type: ignore[assignment]
    found = {name: float(dict(totals)[metric]) for name, metric in METRICS.items()}
    return Look(now, found, {reason: count for reason, count in finished.items() if count}, cache)


def lines(before: Look, now: Look) -> list[tuple[str, str]]:
    """What there is to tell, a title and a text each. Rates and times are of the stretch between the two looks; where
    nothing came in it, times are of all since the server's start."""
    return [
        ("requests", _requests(before, now)),
        ("tokens/s", _rates(before, now)),
        ("TTFT", _mean(before, now, "first_token_s", "first_tokens")),
        ("per token", _mean(before, now, "gap_s", "gaps")),
        ("reused", _reused(before, now)),
        ("cache", _memory(now)),
        *_states(now),
    ]


def _requests(before: Look, now: Look) -> str:
    ended = ", ".join(f"{count:,.0f} {reason}" for reason, count in sorted(now.finished.items())) or "none"
    preempted = f", {now.counts['preempted']:,.0f} preempted" if now.counts["preempted"] else ""
    return f"{now.counts['running']:,.0f} running, {now.counts['waiting']:,.0f} waiting{preempted}; ended: {ended}"


def _rates(before: Look, now: Look) -> str:
    """A step's rows are of prompts, but for one for each token that goes on from another."""
    seconds = max(now.time - before.time, 1e-9)
    written = _more(before, now, "generated")
    going_on = written - _more(before, now, "first_tokens")
    read_in = max(_more(before, now, "rows") - going_on, 0.0)
    resumed = _counter(now, "hits") - _counter(before, "hits")
    return (
        f"{written / seconds:,.1f} written, {read_in / seconds:,.0f} of prompts computed, "
        f"{max(resumed, 0.0) / seconds:,.0f} reused"
    )


def _mean(before: Look, now: Look, total: str, number: str) -> str:
    count, seconds, when = _more(before, now, number), _more(before, now, total), "now"
    if count <= 0:
        count, seconds, when = now.counts[number], now.counts[total], "since the start"
    return f"{1000 * seconds / count:,.1f} ms on average, {when}" if count else "nothing yet"


def _reused(before: Look, now: Look) -> str:
    asked, hits = (_counter(now, name) - _counter(before, name) for name in ("queries", "hits"))
    latest = f", {_share(hits, asked)} now" if asked > 0 else ""
    queries, found = _counter(now, "queries"), _counter(now, "hits")
    return f"{_share(found, queries)} of prompt tokens ({found:,.0f} of {queries:,.0f}){latest}"


def _memory(now: Look) -> str:
    from milepost.engine.memory import size

    space = now.cache["bytes"]
    kinds = ", ".join(f"{size(used['used'])} {kind}" for kind, used in space["by_kind"].items())
    filled = f"{size(space['used'])} of {size(space['budget'])}, {_share(space['used'], space['budget'])}"
    return f"{_bar(space['used'], space['budget'])} {filled} ({kinds}, {size(space['pinned'])} pinned)"


def _states(now: Look) -> list[tuple[str, str]]:
    """Nothing for a model without recurrent layers."""
    if now.cache["policy"].get("grid_tokens") is None:
        return []
    made, used, thinned, stranded = (
        _counter(now, f"checkpoints_{name}") for name in ("made", "used", "thinned", "stranded")
    )
    return [("states", f"{made:,.0f} made, {used:,.0f} used, {thinned:,.0f} thinned, {stranded:,.0f} stranded")]


def _bar(part: float, whole: float, width: int = 20) -> str:
    filled = min(width, round(width * part / whole)) if whole > 0 else 0
    return "[" + "#" * filled + "." * (width - filled) + "]"


def _share(part: float, whole: float) -> str:
    return f"{100 * part / whole:.0f} %" if whole > 0 else "-"


def _more(before: Look, now: Look, name: str) -> float:
    """0 rather than less: the server may have been started anew."""
    return max(now.counts[name] - before.counts[name], 0.0)


def _counter(look: Look, name: str) -> float:
    return float(look.cache["counters"][name])
