"""Rows as JSON lines and as a table."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.table import Table

from bench.turns import Row, Values


def as_json(shape: str, row: Row) -> dict[str, Any]:
    """A row's content in plain values, medians and all single values."""
    return {
        "shape": shape,
        "measure": row.measure.name,
        "unit": row.measure.unit,
        "engines": {values.engine: _values(values) for values in (row.ours, *row.peers)},
        "ratios": row.ratios(),
        "fastest_peer": row.fastest(),
        "limit": row.limit,
        "share_of_limit": _share(row),
        "void": list(row.void),
    }


def as_table(title: str, rows: Iterable[Row]) -> Table:
    """Medians with their spread, how many times as fast as each peer we are (* the fastest), and the limit's share."""
    rows = list(rows)
    names = [values.engine for values in rows[0].peers]
    table = Table(title=title, box=None)
    table.add_column("measurement")
    table.add_column("unit")
    for name in (rows[0].ours.engine, *names, *(f"x {name}" for name in names), "limit", "of it"):
        table.add_column(name, justify="right")
    table.add_column("")
    for row in rows:
        table.add_row(*_cells(row, names))
    return table


def _cells(row: Row, names: list[str]) -> list[str]:
    peers, ratios, fastest, share = {p.engine: p for p in row.peers}, row.ratios(), row.fastest(), _share(row)
    compared = [f"{ratios[name]:.2f}{'*' if name == fastest else ''}" if name in ratios else "-" for name in names]
    return [
        row.measure.name,
        row.measure.unit,
        _median(row.ours),
        *(_median(peers[name]) for name in names),
        *compared,
        "-" if row.limit is None else f"{row.limit:,.1f}",
        "-" if share is None else f"{share:.2f}",
        f"void: {', '.join(row.void)} below its usual rate" if row.void else "",
    ]


def _median(values: Values) -> str:
    return f"{values.median:,.1f} ±{values.spread / 2:.0%}" if values.values else "-"


def _share(row: Row) -> float | None:
    return row.ours.median / row.limit if row.limit and row.ours.values else None


def _values(values: Values) -> dict[str, Any]:
    if not values.values:
        return {"problem": values.problem}
    return {"median": values.median, "spread": values.spread, "values": list(values.values)}
