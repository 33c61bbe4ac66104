"""The rows of runs as tables in Markdown.

    python -m bench.report results.json

Of several rows for one shape and measure the last one that is not void counts.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bench.engines import ENGINES, OURS

Line = dict[str, Any]


def main() -> None:
    lines = [json.loads(line) for line in Path(sys.argv[1]).read_text().splitlines()]
    print("\n\n".join(report(lines)))


def report(lines: Iterable[Line]) -> list[str]:
    """A table for each shape, and what else was found, one line each."""
    found: dict[str, dict[str, Line]] = {}
    facts: list[str] = []
    for line in lines:
        if "measure" not in line:
            facts.append(
                f"- {line['shape']}: " + ", ".join(f"{k} {_plain(v)}" for k, v in line.items() if k != "shape")
            )
        elif not line["void"] or line["measure"] not in found.get(line["shape"], {}):
            found.setdefault(line["shape"], {})[line["measure"]] = line
    tables = [_table(shape, list(rows.values())) for shape, rows in found.items()]
    return [*tables, "\n".join(facts)] if facts else tables


def _table(shape: str, rows: list[Line]) -> str:
    peers = [name for name in ENGINES if name != OURS and any(name in row["engines"] for row in rows)]
    head = [shape, OURS, *peers, "times as fast as the fastest", "share of the limit"]
    body = [[_name(row), *(_cell(row, name) for name in (OURS, *peers)), _best(row), _limit(row)] for row in rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [head, ["---"] * len(head), *body])


def _name(row: Line) -> str:
    void = f" (void: {', '.join(row['void'])} below its usual rate)" if row["void"] else ""
    return f"{row['measure']}, {row['unit']}{void}"


def _cell(row: Line, engine: str) -> str:
    median = row["engines"].get(engine, {}).get("median")
    return "-" if median is None else f"{median:,.1f}"


def _best(row: Line) -> str:
    fastest = row["fastest_peer"]
    return "-" if fastest is None else f"{row['ratios'][fastest]:.2f} ({fastest})"


def _limit(row: Line) -> str:
    return "-" if row["share_of_limit"] is None else f"{row['share_of_limit']:.2f}"


def _plain(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
