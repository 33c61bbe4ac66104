"""A report as JSON: what `milepost replay --json` writes, and what the table, the page and the advice are made of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from milepost.sim.result import Requests, Result
from milepost.sim.sizes import Sizes
from milepost.sim.trace import Trace

FORMAT = "milepost-replay"
VERSION = 1


@dataclass(frozen=True, eq=False)
class Run:
    """A replay, and what a reader of it wants to know besides. `flags`: with which `milepost serve` does the same, None
    where it cannot. `prefill_s`: of all requests, one after another. `ttft_ms`: "mean", "p50", "p99"."""

    result: Result
    flags: str | None = None
    prefill_s: float | None = None
    ttft_ms: Mapping[str, float] | None = None


@dataclass(frozen=True, slots=True)
class Bounds:
    """Of a budget: the hit rate that no policy can pass, and one that a schedule reaches which knows the future."""

    upper_bound: float | None = None
    feasible: float | None = None


def report(
    trace: Trace, sizes: Sizes, requests: Requests, runs: Iterable[Run], bounds: Mapping[int, Bounds] | None = None
) -> dict[str, Any]:
    """`requests`: of the trace, as `look` saw them; `bounds`: by budget, where they are known."""
    told = [_run(run) for run in runs]
    num_tokens, ceiling = int(requests.input_tokens.sum()), int(requests.ceiling.sum())
    known = bounds or {}
    return {
        "format": FORMAT,
        "version": VERSION,
        "trace": {
            "name": trace.name,
            "block_size": trace.block_size,
            "requests": len(requests),
            "input_tokens": num_tokens,
            "output_tokens": int(requests.output_tokens.sum()),
            "duration_ms": float(requests.time_ms[-1] - requests.time_ms[0]) if len(requests) else 0.0,
        },
        "model": {
            "name": sizes.model,
            "kv_bytes_per_token": sizes.kv_bytes_per_token,
            "checkpoint_bytes": sizes.checkpoint_bytes,
        },
        "ceiling": {"hit_tokens": ceiling, "hit_rate": ceiling / num_tokens if num_tokens else 0.0},
        "budgets": [_budget(size, known.get(size, Bounds())) for size in sorted({run["budget_bytes"] for run in told})],
        "runs": told,
    }


def _budget(size: int, bounds: Bounds) -> dict[str, Any]:
    return {"bytes": size, "upper_bound": bounds.upper_bound, "feasible": bounds.feasible}


def _run(run: Run) -> dict[str, Any]:
    result = run.result
    kinds = result.bytes_by_kind
    times = result.requests.time_ms[list(result.sampled)].tolist()
    samples = zip(times, kinds["kv"].sampled, kinds["state"].sampled, strict=True)
    return {
        "policy": result.policy,
        "flags": run.flags,
        "budget_bytes": result.limit_bytes,
        "hit_rate": result.hit_rate,
        "hit_tokens": int(result.hits.sum()),
        "recomputed_tokens": result.recomputed_tokens,
        "requests_cut_short": result.cut_short,
        "peak_bytes": {kind: seen.peak for kind, seen in kinds.items()},
        "mean_bytes": {kind: round(seen.mean) for kind, seen in kinds.items()},
        "evictions": dict(result.evictions),
        "states_made": result.states_made,
        "states_used": result.states_used,
        "resumed_from": dict(result.resumed_from),
        "misses": dict(result.misses),
        "prefill_s": run.prefill_s,
        "ttft_ms": None if run.ttft_ms is None else dict(run.ttft_ms),
        "memory": [[round(time), kv, state] for time, kv, state in samples],
    }
