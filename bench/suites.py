"""The groups of measurements, each with the processes that it needs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench.children import Child, ChildError
from bench.engines import ENGINES, OURS, command, environment
from bench.limits import Costs, costs_of, limit, matrices
from bench.machine import Machine, Speed
from bench.measures import DECODE_PROMPT, DECODE_TOKENS, REUSE, THROUGHPUT, Measure
from bench.turns import Row, Values, fallen, take_turns
from bench.usual import Usual
from milepost.bench import shapes

GEMM_ROWS = (256, 512, 2048)
WARM_UP_ROUNDS = 2
Fact = dict[str, Any]


@dataclass(frozen=True)
class Context:
    """What a run was asked for. `divide`: sizes are divided by it; then nothing is kept of what was found."""

    shape: str
    root: Path
    peers: Sequence[str]
    repeats: int
    threads: int
    timeout_s: float
    usual: Path
    divide: int = 1

    def start(self, name: str, prefix_caching: bool) -> Child:
        kind = "reuse" if prefix_caching else "fresh"
        return Child(
            name,
            command(name, self.root, self.shape, self.threads, prefix_caching),
            environment(name, self.root, self.threads),
            self.root / "logs" / f"{self.shape}-{name}-{kind}.log",
            self.timeout_s,
        )


def throughput(context: Context) -> tuple[list[Row], list[Fact]]:
    """Prefill, decode and a burst, nothing ever repeated."""
    return _in_turns(context, THROUGHPUT, list(context.peers), prefix_caching=False)


def reuse(context: Context) -> tuple[list[Row], list[Fact]]:
    """Time to the first token of prompts that were seen before, whole or in part."""
    peers = [name for name in context.peers if ENGINES[name].reuses]
    return _in_turns(context, REUSE, peers, prefix_caching=True)


def start(context: Context) -> tuple[list[Row], list[Fact]]:
    """From the start of a process to its first token, files warm: each round starts all anew, in turns."""
    measure = Measure("process start to first token", "start", {}, "ms")
    names = [OURS, *context.peers]
    found: dict[str, list[float]] = {name: [] for name in names}
    problems: dict[str, str] = {}
    for turn in range(min(context.repeats, 3) + 1):
        for name in names:
            if name in problems:
                continue
            try:
                child = context.start(name, prefix_caching=False)
            except ChildError as error:
                problems[name] = str(error)
                continue
            child.close()
            if turn:  # the first one warms files, and what engines keep compiled
                found[name].append(1e3 * child.start_seconds)
                _say(f"start {name}: {child.start_seconds:.2f} s")
    values = [Values(name, tuple(found[name]), problems.get(name, "")) for name in names]
    return [Row(measure, values[0], tuple(values[1:]))], []


def kernels(context: Context) -> tuple[list[Row], list[Fact]]:
    """Milepost alone: its matrix kernel against the dot instructions, and what a step of decode spends elsewhere."""
    config, facts = shapes.config_of(context.shape), []
    machine = Machine(context.root / "machine", context.threads)
    with _started(context, [OURS], prefix_caching=False) as (children, problems):
        if OURS in problems:
            return [], [{"kernels": problems[OURS]}]
        for size_in, size_out in matrices(config):
            facts += [_gemm(context, children[0], machine, rows, size_in, size_out) for rows in GEMM_ROWS]
        decode = {"batch": 1, "prompt": DECODE_PROMPT, "tokens": DECODE_TOKENS}
        shares = [_share(children[0].ask("outside_kernels", **decode)) for _ in range(context.repeats)]
    facts.append({"share_outside_kernels": sorted(shares)[len(shares) // 2], "values": shares})
    return [], facts


def _gemm(context: Context, child: Child, machine: Machine, rows: int, size_in: int, size_out: int) -> Fact:
    rates, peaks = [], []
    for _ in range(context.repeats):
        speed = machine.sample()
        answer = child.ask("gemm", rows=rows, size_in=size_in, size_out=size_out)
        rates.append(answer["work"] / answer["seconds"])
        peaks.append(speed.dot_ops if speed else 0.0)
    rate, peak = sorted(rates)[len(rates) // 2], sorted(peaks)[len(peaks) // 2]
    return {"gemm": [rows, size_in, size_out], "ops_per_s": rate, "peak": peak, "share": rate / peak if peak else None}


def _share(answer: dict[str, Any]) -> float:
    return float(answer["seconds"] / answer["work"])


def _in_turns(
    context: Context, measures: Sequence[Measure], peers: list[str], prefix_caching: bool
) -> tuple[list[Row], list[Fact]]:
    usual, machine = Usual(context.usual), Machine(context.root / "machine", context.threads)
    with _started(context, [OURS, *peers], prefix_caching) as (children, problems):
        facts: list[Fact] = [{"engine": child.name, **child.about} for child in children]
        found = []
        for measure in (m.shrunk(context.divide) if context.divide > 1 else m for m in measures):
            take_turns(_warm_up(measure), children, 1)
            machine.sample()
            values = {v.engine: v for v in take_turns(measure, children, context.repeats, _tell(measure))}
            values |= {name: Values(name, problem=why) for name, why in problems.items()}
            found.append((measure, [values[name] for name in (OURS, *peers)]))
        machine.sample()
    costs, speed = costs_of(shapes.config_of(context.shape)), machine.speed
    if speed is not None:
        facts.append({"read_bytes_per_s": speed.read_bytes, "dot_ops_per_s": speed.dot_ops})
    return [_row(context, usual, measure, values, costs, speed) for measure, values in found], facts


def _row(
    context: Context, usual: Usual, measure: Measure, values: list[Values], costs: Costs, speed: Speed | None
) -> Row:
    bound = None if speed is None else limit(measure, costs, speed)
    row = Row(measure, values[0], tuple(values[1:]), bound)
    if context.divide > 1:
        return row
    row = replace(row, void=fallen(measure, row.peers, usual.of(context.shape, measure)))
    usual.learn(context.shape, measure, row.peers)
    return row


def _warm_up(measure: Measure) -> Measure:
    """One run of the same kind: code that is compiled for a size, threads and pages are there when it counts."""
    return measure if measure.op != "burst" else measure.shrunk(4)


@contextmanager
def _started(context: Context, names: list[str], prefix_caching: bool) -> Iterator[tuple[list[Child], dict[str, str]]]:
    """Starts them one after the other, and ends them; which did not come up, and why."""
    children: list[Child] = []
    problems: dict[str, str] = {}
    try:
        for name in names:
            _say(f"starting {name}")
            try:
                children.append(context.start(name, prefix_caching))
            except ChildError as error:
                problems[name] = str(error)
        yield children, problems
    finally:
        for child in children:
            child.close()


def _tell(measure: Measure) -> Callable[[str, float, Mapping[str, Any]], None]:
    def tell(name: str, value: float, answer: Mapping[str, Any]) -> None:
        cached = "" if answer.get("cached") is None else f" ({answer['cached']} tokens cached)"
        _say(f"{measure.name}: {name} {value:,.1f} {measure.unit}{cached}")

    return tell


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


SUITES: dict[str, Callable[[Context], tuple[list[Row], list[Fact]]]] = {
    "throughput": throughput,
    "reuse": reuse,
    "start": start,
    "kernels": kernels,
}
