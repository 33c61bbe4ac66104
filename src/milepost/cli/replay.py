"""`milepost replay`: what policies of the prefix cache make of recorded traffic, and how far that is from the bound."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from milepost.cache.policies.registry import DEFAULT, POLICIES
from milepost.cli import trace_options
from milepost.cli.options import parse_interval, parse_size
from milepost.errors import ConfigError
from milepost.machine import usable_cpus


def replay(
    trace: trace_options.TraceFile,
    policy: Annotated[
        list[str] | None,
        typer.Option(help=f"One of: {', '.join(POLICIES)}; may be repeated.", show_default="all"),
    ] = None,
    prefix_cache_retention_interval: Annotated[
        list[str] | None,
        typer.Option(metavar="TOKENS", help=f"Also {DEFAULT} with this one; may be repeated.", show_default=False),
    ] = None,
    memory: Annotated[
        list[str] | None,
        typer.Option(metavar="BYTES", help="For the cache, such as 16GB; may be repeated.", show_default="six"),
    ] = None,
    format_name: trace_options.Format = None,
    block_size: Annotated[
        int | None,
        typer.Option(min=1, metavar="TOKENS", help="A multiple of the trace's: coarser is faster.", show_default=False),
    ] = None,
    model: trace_options.Model = None,
    kv_bytes_per_token: trace_options.KvBytes = None,
    checkpoint_bytes: trace_options.CheckpointBytes = None,
    cost: trace_options.CostFile = None,
    bounds: Annotated[bool, typer.Option(help="Find the bound of any policy, and a schedule with foresight.")] = True,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Replays at once.", show_default="the cores there are")
    ] = None,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a page with pictures there.", show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON instead of text.")] = False,
) -> None:
    """Replay a trace through the engine's prefix cache, without a model: hit rates by policy and memory, and bounds."""
    from milepost.sim import study
    from milepost.sim.replay import look
    from milepost.sim.report.choice import choose
    from milepost.sim.report.data import report
    from milepost.sim.report.table import table

    source = study.Source(trace, format_name, _factor(trace, format_name, block_size))
    opened = source.open()
    sizes = trace_options.sizes_for(opened, model, kv_bytes_per_token, checkpoint_bytes)
    times = trace_options.cost_for(cost, sizes)
    intervals = [parse_interval(text) for text in prefix_cache_retention_interval or ()]
    tried = [study.Tried(name) for name in _known(policy)] + [study.Tried(DEFAULT, interval) for interval in intervals]
    requests = look(opened, states=sizes.checkpoint_bytes > 0)
    budgets = sorted({parse_size(text) for text in memory or ()}) or study.default_budgets(opened, requests, sizes)
    with trace_options.replaying() as progress:
        runs = study.runs(source, tried, budgets, sizes, jobs or usable_cpus(), progress)
    found = trace_options.bounds_of(opened, sizes, budgets) if bounds else {}
    told = report(opened, sizes, requests, runs, found, times)
    advice = choose(told)
    if html is not None:
        _write(html, told)
    if as_json:
        print(json.dumps({**told, "advice": asdict(advice) if advice else None}))
        return
    for line in table(told, advice):
        print(line)


def _known(policies: list[str] | None) -> list[str]:
    for name in policies or ():
        if name not in POLICIES:
            raise ConfigError(f"--policy cannot be {name!r}", f"one of: {', '.join(POLICIES)}")
    return list(dict.fromkeys(policies or POLICIES))


def _factor(path: Path, format_name: str | None, block_size: int | None) -> int:
    from milepost.sim.formats.registry import open_trace

    own = open_trace(path, format_name).block_size
    if block_size is not None and block_size % own:
        raise ConfigError(f"--block-size must be a multiple of the trace's {own}, got {block_size}", f"use {own * 8}")
    return 1 if block_size is None else block_size // own


def _write(path: Path, told: dict[str, Any]) -> None:
    from milepost.sim.report.page import page

    try:
        path.write_text(page(told), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--html cannot write to {path}: {error.strerror}", "give another file") from None
