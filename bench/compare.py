"""Milepost and its peers in turns on one shape, with what the machine allows.

    python -m bench.compare SHAPE --root ROOT [--peers vllm,openvino,llama] [--suites throughput,reuse,start,kernels]

ROOT holds the peers and the models: docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from bench import suites
from bench.engines import ENGINES, OURS
from bench.machine import QUIET_SHARE, busy_share
from bench.suites import Context
from bench.table import as_json, as_table
from bench.turns import Row
from milepost.bench import shapes

PEERS = "vllm,openvino,openvino-sdpa,llama"
SUITES = "throughput,reuse"


@dataclass(frozen=True)
class Asked:
    """The command line."""

    context: Context
    suites: list[str]
    json_file: Path | None


def main() -> int:
    asked = read(sys.argv[1:])
    context = asked.context
    if (share := busy_share()) > QUIET_SHARE:
        print(f"warning: others use {share:.0%} of the processors: these figures are not to be used", file=sys.stderr)
    with ExitStack() as files:
        out = files.enter_context(asked.json_file.open("a")) if asked.json_file else None
        for name in asked.suites:
            rows, facts = suites.SUITES[name](context)
            for fact in facts:
                print(json.dumps(fact))
            if rows:
                Console(width=200).print(as_table(f"{context.shape}, {name}, median of {context.repeats}", rows))
            for problem in problems(rows):
                print(problem)
            if out is not None:
                lines = [
                    *({"shape": context.shape, **fact} for fact in facts),
                    *(as_json(context.shape, r) for r in rows),
                ]
                out.writelines(json.dumps(line) + "\n" for line in lines)
    return 0


def problems(rows: list[Row]) -> Iterator[str]:
    """Why cells are empty."""
    for row in rows:
        for values in (row.ours, *row.peers):
            if values.problem:
                yield f"  {row.measure.name}: {values.engine}: {values.problem}"


def read(arguments: list[str]) -> Asked:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", choices=shapes.names())
    parser.add_argument("--root", type=Path, required=True, help="the folder of peers and models")
    parser.add_argument("--peers", default=PEERS, help=f"of {', '.join(ENGINES)}; default {PEERS}")
    parser.add_argument("--suites", default=SUITES, help=f"of {', '.join(suites.SUITES)}; default {SUITES}")
    parser.add_argument("--repeats", type=int, default=5, help="rounds of turns; the median counts")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--timeout", type=float, default=900, help="seconds that an engine may take for one answer")
    parser.add_argument("--json", type=Path, metavar="FILE", help="append one JSON line for each row")
    parser.add_argument("--usual", type=Path, metavar="FILE", help="usual rates; default ROOT/usual.json")
    parser.add_argument(
        "--divide", type=int, default=1, metavar="N", help="sizes divided by N: to see that all engines answer"
    )
    given = parser.parse_args(arguments)
    peers = _known(parser, "peer", given.peers, [name for name in ENGINES if name != OURS])
    root = given.root.resolve()
    context = Context(
        shape=given.shape,
        root=root,
        peers=peers,
        repeats=given.repeats,
        threads=given.threads,
        timeout_s=given.timeout,
        usual=given.usual or root / "usual.json",
        divide=given.divide,
    )
    return Asked(context, _known(parser, "suite", given.suites, list(suites.SUITES)), given.json)


def _known(parser: argparse.ArgumentParser, what: str, given: str, known: list[str]) -> list[str]:
    names = [name for name in given.split(",") if name]
    for name in names:
        if name not in known:
            parser.error(f"no {what} {name!r}: one of {', '.join(known)}")
    return names


if __name__ == "__main__":
    sys.exit(main())
