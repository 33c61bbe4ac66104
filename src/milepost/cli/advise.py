"""`milepost advise`: which flags of `milepost serve` suit recorded traffic, and what they gain."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import Annotated

import typer

from milepost.cli import trace_options
from milepost.cli.options import parse_size
from milepost.sim.report.choice import Advice, Report, choose
from milepost.sim.report.table import LIMITS, about, rows, share
from milepost.sim.report.words import SPACE, as_flag, in_bytes, percent


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
        report = lab.advise(opened, sizes, memory, trace_options.bounds_of, cost=times, progress=progress)
    advice = choose(report, memory)
    if as_json:
        print(json.dumps({**report, "advice": asdict(advice) if advice else None}))
        return
    for line in _lines(report, advice):
        print(line)


def _lines(report: Report, advice: Advice | None) -> Iterator[str]:
    yield from about(report)
    if advice is None or not report["trace"]["requests"]:
        yield "Nothing to replay."
        return
    yield ""
    setting = "the default setting" if advice.is_default else advice.flags
    memory, rate = in_bytes(advice.budget_bytes), percent(advice.hit_rate)
    yield f"Use {setting}: with {memory}, {rate} of all prompt tokens are resumed.".replace(SPACE, " ")
    command = f"milepost serve MODEL --kv-cache-memory-bytes {as_flag(advice.budget_bytes)}"
    yield f"    {command} {advice.flags or ''}".rstrip()
    yield ""
    yield from rows(list(_settings(report, advice)))
    yield ""
    yield from rows(list(_memory(report, advice)))


def _settings(report: Report, advice: Advice) -> Iterator[list[str]]:
    """All with the same memory, the advised one first; how much more each of the others computes."""
    runs = [run for run in report["runs"] if run["budget_bytes"] == advice.budget_bytes]
    has_times = all("prefill_ms" in run for run in runs)
    yield ["setting", "hit rate", "computes", *(["prefill, mean"] if has_times else [])]
    for run in sorted(runs, key=lambda run: (run["policy"] != advice.policy, -run["hit_rate"])):
        excess = (1 - run["hit_rate"]) / max(1 - advice.hit_rate, 1e-9) - 1
        change = f"{percent(abs(excess))} {'more' if excess > 0 else 'less'}" if run["policy"] != advice.policy else ""
        times = [f"{run['prefill_ms']['mean']:,.0f} ms"] if has_times else []
        yield [run["policy"], percent(run["hit_rate"]), change, *times]


def _memory(report: Report, advice: Advice) -> Iterator[list[str]]:
    """With half and with twice the memory, and how far the bound is."""
    yield ["memory", "hit rate", *LIMITS]
    own = {run["budget_bytes"]: run["hit_rate"] for run in report["runs"] if run["policy"] == advice.policy}
    for budget in report["budgets"]:
        size = budget["bytes"]
        yield [in_bytes(size), percent(own[size]), *(share(budget[field]) for field in LIMITS.values())]
    yield ["endless", share(advice.ceiling), *("" for _ in LIMITS)]
