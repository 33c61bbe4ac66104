"""A report as lines of text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from milepost.sim.report.choice import Advice, Report, Run
from milepost.sim.report.words import SPACE, in_bytes, in_time, percent

LIMITS = {"with foresight": "feasible", "bound of any policy": "upper_bound"}


def table(report: Report, advice: Advice | None) -> Iterator[str]:
    """Hit rates of all policies by budget, between the limits; then the advised policy in detail."""
    yield from about(report)
    if advice is None:
        return
    yield ""
    yield from _hit_rates(report)
    yield ""
    yield f"{advice.policy}:"
    yield from _details(report, [run for run in report["runs"] if run["policy"] == advice.policy])


def about(report: Report) -> Iterator[str]:
    trace, model = report["trace"], report["model"]
    yield f"{trace['name']}: {trace['requests']:,} requests, {trace['input_tokens']:,} prompt tokens"
    state = f", {in_bytes(model['checkpoint_bytes'])} a state" if model["checkpoint_bytes"] else ""
    name = model["name"] or "sizes as given"
    yield f"{name}: {in_bytes(model['kv_bytes_per_token'])} a token{state}".replace(SPACE, " ")


def rows(lines: Sequence[Sequence[str]]) -> Iterator[str]:
    """In columns: the first to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for first, *others in lines:
        cells = [first.ljust(widths[0]), *(text.rjust(width) for text, width in zip(others, widths[1:], strict=True))]
        yield "   ".join(cells).rstrip().replace(SPACE, " ")


def share(value: float | None) -> str:
    return "" if value is None else percent(value)


def _hit_rates(report: Report) -> Iterator[str]:
    budgets = report["budgets"]
    found: dict[str, dict[int, float]] = {}
    for run in report["runs"]:
        found.setdefault(run["policy"], {})[run["budget_bytes"]] = run["hit_rate"]
    lines = [["hit rate", *(in_bytes(budget["bytes"]) for budget in budgets)]]
    for policy, rates in sorted(found.items(), key=lambda item: -sum(item[1].values())):
        lines.append([policy, *(share(rates.get(budget["bytes"])) for budget in budgets)])
    for name, field in LIMITS.items():
        if any(budget[field] is not None for budget in budgets):
            lines.append([name, *(share(budget[field]) for budget in budgets)])
    lines.append(["endless memory", *(share(report["ceiling"]["hit_rate"]) for _ in budgets)])
    yield from rows(lines)


def _details(report: Report, runs: Sequence[Run]) -> Iterator[str]:
    """One line a budget. Recomputed: tokens that a cache without end would have had."""
    has_times = all("prefill_ms" in run for run in runs)
    head = ["memory", "hit rate", "recomputed", "KV", "states", "KV evicted", "states thinned", "stranded"]
    lines = [[*head, "prefill", "mean", "99 %"] if has_times else head]
    for run in sorted(runs, key=lambda run: run["budget_bytes"]):
        evictions, peak = run["evictions"], run["peak_bytes"]
        line = [
            in_bytes(run["budget_bytes"]),
            percent(run["hit_rate"]),
            f"{run['recomputed_tokens']:,}",
            in_bytes(peak["kv"]),
            in_bytes(peak["state"]),
            f"{evictions['evicted']:,}",
            f"{evictions['thinned']:,}",
            f"{evictions['stranded']:,}",
        ]
        if has_times:
            alone = run["prefill_ms"]
            line += [in_time(run["prefill_s"]), in_time(alone["mean"] / 1000), in_time(alone["p99"] / 1000)]
        lines.append(line)
    yield from rows(lines)
