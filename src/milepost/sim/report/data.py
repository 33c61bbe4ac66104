"""A report as JSON: what `milepost replay --json` writes, and what the table, the page and the advice are made of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from milepost.sim.cost import Cost, first_tokens
from milepost.sim.result import Requests, Result
from milepost.sim.sizes import Sizes
from milepost.sim.trace import Trace

FORMAT = "milepost-replay"
VERSION = 1


@dataclass(frozen=True, eq=False)
class Run:
    """A replay, and the flags with which `milepost serve` does the same; None where it cannot."""

    result: Result
    flags: str | None = None


@dataclass(frozen=True, slots=True)
class Bounds:
    """Of a budget: the hit rate that no policy can pass, and one that a schedule reaches which knows the future."""

    upper_bound: float | None = None
    feasible: float | None = None


def report(
    trace: Trace,
    sizes: Sizes,
    requests: Requests,
    runs: Iterable[Run],
    bounds: Mapping[int, Bounds] | None = None,
    cost: Cost | None = None,
) -> dict[str, Any]:
    """`requests`: of the trace, as `look` saw them; `bounds`: by budget, where they are known; `cost`: what prompts
    take, where that is known."""
    told = [_run(run, cost) for run in runs]
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
        "cost": None if cost is None else asdict(cost),
        "budgets": [_budget(size, known.get(size, Bounds())) for size in sorted({run["budget_bytes"] for run in told})],
        "runs": told,
    }


def _budget(size: int, bounds: Bounds) -> dict[str, Any]:
    return {"bytes": size, "upper_bound": bounds.upper_bound, "feasible": bounds.feasible}


def _times(result: Result, cost: Cost) -> dict[str, Any]:
    """`prefill_ms`: of each request alone. `ttft_ms`: of requests that one server computes in turn; where it is `busy`
    all the time these tell of the length of its queue alone."""
    prefill = cost.prefill_ms(result.hits, result.requests.input_tokens)
    first = first_tokens(result.requests.time_ms, prefill)
    alone = np.quantile(prefill, (0.5, 0.99)).tolist() if len(prefill) else [0.0, 0.0]
    return {
        "prefill_s": float(prefill.sum()) / 1000,
        "prefill_ms": {"mean": float(prefill.mean()) if len(prefill) else 0.0, "p50": alone[0], "p99": alone[1]},
        "ttft_ms": {"mean": first.mean, "p25": first.p25, "p50": first.p50, "p75": first.p75, "p99": first.p99},
        "busy": first.busy,
    }


def _run(run: Run, cost: Cost | None) -> dict[str, Any]:
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
        "memory": [[round(time), kv, state] for time, kv, state in samples],
        **({} if cost is None else _times(result, cost)),
    }
