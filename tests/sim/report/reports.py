"""Reports as `milepost replay --json` writes them, made up."""

from __future__ import annotations

from typing import Any

GB = 10**9
TOKENS = 1_000_000


def run(policy: str, gigabytes: int, rate: float, flags: str | None = None) -> dict[str, Any]:
    return {
        "policy": policy,
        "flags": flags,
        "budget_bytes": gigabytes * GB,
        "hit_rate": rate,
        "hit_tokens": int(rate * TOKENS),
        "recomputed_tokens": int((0.6 - rate) * TOKENS),
        "evictions": {"evicted": 12_345, "thinned": 7},
        "peak_bytes": {"kv": gigabytes * GB // 2, "state": gigabytes * GB // 4},
        "prefill_s": 12_345.0,
        "prefill_ms": {"mean": 900.0, "p50": 700.0, "p99": 4000.0},
        "ttft_ms": {"mean": 1234.0, "p50": 1000.0, "p99": 5678.0},
        "busy": 0.5,
        "memory": [[1000 * i, i * gigabytes * GB // 200, i * gigabytes * GB // 400] for i in range(100)],
    }


def report(*runs: dict[str, Any], **fields: Any) -> dict[str, Any]:
    sizes = sorted({one["budget_bytes"] for one in runs})
    budgets = [{"bytes": size, "upper_bound": 0.55, "feasible": 0.5} for size in sizes]
    told: dict[str, Any] = {
        "format": "milepost-replay",
        "version": 1,
        "trace": {
            "name": "trace.jsonl",
            "requests": 1000,
            "input_tokens": TOKENS,
            "duration_ms": 3_600_000.0,
            "block_size": 64,
        },
        "model": {"name": "a model", "kv_bytes_per_token": 12_288, "checkpoint_bytes": 19_534_970},
        "cost": {"fixed_ms": 0.0, "token_ms": 2.8, "pair_ms": 7e-5, "source": "a machine"},
        "ceiling": {"hit_rate": 0.6},
        "budgets": budgets,
        "runs": list(runs),
    }
    return told | fields


THREE = report(
    run("ours", 4, 0.30, ""),
    run("ours", 8, 0.47, ""),
    run("ours", 16, 0.49, ""),
    run("interval 512", 4, 0.28, "--prefix-cache-retention-interval 512"),
    run("interval 512", 8, 0.46, "--prefix-cache-retention-interval 512"),
    run("interval 512", 16, 0.48, "--prefix-cache-retention-interval 512"),
    run("oracle", 4, 0.5),
    run("oracle", 8, 0.5),
    run("oracle", 16, 0.5),
    run("lru", 4, 0.1),
    run("lru", 8, 0.3),
    run("lru", 16, 0.4),
)
