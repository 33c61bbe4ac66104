"""Which policy and how much memory to use, by a report's hit rates.

The policy: of those that a server has, the one with the best hit rate, on average over the budgets. The memory: the
least with which at most `EXCESS` more tokens are computed than with the most memory that was tried. What is computed
costs time; of 95 % and 98 % resumed the one is two and a half times the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any

EXCESS = 0.1
EQUAL = 0.005
"""Policies that compute so much more than the best, as a share, are taken for equal, and the default for the best."""

BASELINE = "lru"

Report = Mapping[str, Any]
Run = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Advice:
    """`flags`: of `milepost serve`, None where no server has the policy. `other`: the baseline, or the best of the
    others, None where there is none. `best`: of the policies that no server has, who resumes most with that memory.
    `bound`, `feasible`: of the budget, `ceiling`: of endless memory, None where they are not known. `by_budget`: the
    policy's hit rate with each memory that was tried, ascending."""

    policy: str
    flags: str | None
    budget_bytes: int
    hit_rate: float
    other: str | None
    other_rate: float
    best: str | None
    best_rate: float
    bound: float | None
    feasible: float | None
    ceiling: float | None
    by_budget: Mapping[int, float]

    @property
    def excess(self) -> float:
        """How much more the other computes, as a share."""
        return (1 - self.other_rate) / max(1 - self.hit_rate, 1e-9) - 1

    @property
    def is_default(self) -> bool:
        return self.flags == ""


def choose(report: Report, budget_bytes: int | None = None) -> Advice | None:
    """For `budget_bytes`, which must be among the report's; None: the memory is chosen as well. None if nothing ran."""
    runs = [run for run in report["runs"] if budget_bytes in (None, run["budget_bytes"])]
    served = [run for run in runs if run.get("flags") is not None] or runs
    if not served:
        return None
    policy = _best(served)
    own = {run["budget_bytes"]: run for run in runs if run["policy"] == policy}
    chosen = own[budget_bytes or _enough(own)]
    budget = _at(report["budgets"], "bytes", chosen["budget_bytes"]) or {}
    same = [run for run in runs if run["budget_bytes"] == chosen["budget_bytes"]]
    other = _other(run for run in same if run["policy"] != policy)
    unserved = (run for run in same if run.get("flags") is None)
    best = max(unserved, key=lambda run: run["hit_rate"], default=None)
    return Advice(
        policy=policy,
        flags=chosen.get("flags"),
        budget_bytes=chosen["budget_bytes"],
        hit_rate=chosen["hit_rate"],
        other=other["policy"] if other else None,
        other_rate=other["hit_rate"] if other else 0.0,
        best=best["policy"] if best else None,
        best_rate=best["hit_rate"] if best else 0.0,
        bound=budget.get("upper_bound"),
        feasible=budget.get("feasible"),
        ceiling=(report.get("ceiling") or {}).get("hit_rate"),
        by_budget={size: own[size]["hit_rate"] for size in sorted(own)},
    )


def _best(runs: list[Run]) -> str:
    rates: dict[str, list[float]] = {}
    for run in runs:
        rates.setdefault(run["policy"], []).append(run["hit_rate"])
    means = {policy: fmean(found) for policy, found in rates.items()}
    flags = {run["policy"]: run.get("flags") for run in runs}
    allowed = (1 + EQUAL) * min(1 - mean for mean in means.values())
    equal = [policy for policy, mean in means.items() if 1 - mean <= allowed]
    return min(equal, key=lambda policy: (flags[policy] != "", -means[policy]))


def _enough(own: Mapping[int, Run]) -> int:
    allowed = (1 + EXCESS) * min(1 - run["hit_rate"] for run in own.values())
    return min(size for size, run in own.items() if 1 - run["hit_rate"] <= allowed)


def _other(runs: Iterable[Run]) -> Run | None:
    found = list(runs)
    return _at(found, "policy", BASELINE) or max(found, key=lambda run: run["hit_rate"], default=None)


def _at(rows: Iterable[Run], name: str, value: object) -> Run | None:
    return next((row for row in rows if row[name] == value), None)
