"""`milepost advise`: which flags of `milepost serve` suit recorded traffic, and what they gain."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Annotated, Any

import typer

from milepost.cli import trace_options
from milepost.cli.options import parse_size
from milepost.sim.report.choice import Advice, Report, choose
from milepost.sim.report.data import Bounds
from milepost.sim.report.words import as_flag, in_bytes, percent
from milepost.sim.sizes import Sizes
from milepost.sim.trace import Trace


def advise(
    trace: trace_options.TraceFile,
    memory: Annotated[
        int,
        typer.Option(parser=parse_size, metavar="BYTES", help="For the cache, such as 16GB.", show_default=False),
    ],
    format_name: trace_options.Format = None,
    model: trace_options.Model = None,
    kv_bytes_per_token: trace_options.KvBytes = None,
    checkpoint_bytes: trace_options.CheckpointBytes = None,
    cost: trace_options.CostFile = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON instead of text.")] = False,
) -> None:
    """Name the setting of `milepost serve` that suits a trace, and what it gains, with so much memory for the cache."""
    from milepost.sim import advise as lab
    from milepost.sim.formats.registry import open_trace

    opened = open_trace(trace, format_name)
    sizes = trace_options.sizes_for(opened, model, kv_bytes_per_token, checkpoint_bytes)
    times = trace_options.cost_for(cost, sizes)
    with trace_options.replaying() as progress:
        report = lab.advise(opened, sizes, memory, _bounds, cost=times, progress=progress)
    advice = choose(report, memory)
    if as_json:
        print(json.dumps({**report, "advice": asdict(advice) if advice else None}))
        return
    for line in _lines(report, advice):
        print(line.replace("\u00a0", " "))


def _bounds(trace: Trace, sizes: Sizes, budgets: list[int]) -> Mapping[int, Bounds]:
    from milepost.sim.limits import limits

    return {found.limit_bytes: Bounds(found.upper_bound, found.feasible) for found in limits(trace, sizes, budgets)}


def _lines(report: Report, advice: Advice | None) -> Iterator[str]:
    told, model = report["trace"], report["model"]
    yield f"{told['name']}: {told['requests']:,} requests, {told['input_tokens']:,} prompt tokens"
    if advice is None or not told["requests"]:
        yield "Nothing to replay."
        return
    state = f", {in_bytes(model['checkpoint_bytes'])} a state" if model["checkpoint_bytes"] else ""
    yield f"{model['name'] or 'sizes as given'}: {in_bytes(model['kv_bytes_per_token'])} a token{state}"
    yield ""
    setting = "the default setting" if advice.is_default else advice.flags
    memory = in_bytes(advice.budget_bytes)
    yield f"Use {setting}: with {memory}, {percent(advice.hit_rate)} of all prompt tokens are resumed."
    command = f"milepost serve MODEL --kv-cache-memory-bytes {as_flag(advice.budget_bytes)}"
    yield f"    {command} {advice.flags or ''}".rstrip()
    yield ""
    yield from _settings(report, advice)
    yield ""
    yield from _memory(report, advice)


def _settings(report: Report, advice: Advice) -> Iterator[str]:
    """All with the same memory, the best first; how much more each computes than the advised one."""
    runs = [run for run in report["runs"] if run["budget_bytes"] == advice.budget_bytes]
    has_times = all("prefill_ms" in run for run in runs)
    yield f"{'setting':14}{'hit rate':>10}{'computes':>16}{'prefill, mean' if has_times else '':>18}"
    for run in sorted(runs, key=lambda run: (run["policy"] != advice.policy, -run["hit_rate"])):
        excess = (1 - run["hit_rate"]) / max(1 - advice.hit_rate, 1e-9) - 1
        change = f"{percent(abs(excess))} {'more' if excess > 0 else 'less'}" if run["policy"] != advice.policy else ""
        time = f"{run['prefill_ms']['mean']:,.0f} ms" if has_times else ""
        yield f"{run['policy']:14}{percent(run['hit_rate']):>10}{change:>16}{time:>18}".rstrip()


def _memory(report: Report, advice: Advice) -> Iterator[str]:
    """With half and with twice the memory, and how far the bound is."""
    yield f"{'memory':14}{'hit rate':>10}{'with foresight':>16}{'bound of any':>18}"
    for budget in report["budgets"]:
        run = next(one for one in report["runs"] if _is(one, advice.policy, budget["bytes"]))
        feasible, bound = _share(budget["feasible"]), _share(budget["upper_bound"])
        yield f"{in_bytes(budget['bytes']):14}{_share(run['hit_rate']):>10}{feasible:>16}{bound:>18}".rstrip()
    yield f"{'endless':14}{_share(advice.ceiling):>10}"


def _share(value: float | None) -> str:
    return "" if value is None else percent(value)


def _is(run: Mapping[str, Any], policy: str, budget_bytes: int) -> bool:
    return bool(run["policy"] == policy and run["budget_bytes"] == budget_bytes)
