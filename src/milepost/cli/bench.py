"""`milepost bench`: prefill, decode and a burst of requests, on a random-weight model of a known shape."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from milepost.bench import shapes


def bench(
    shape: Annotated[str, typer.Argument(help=f"One of: {', '.join(shapes.names())}.")] = "smollm2-135m",
    dtype: Annotated[str, typer.Option(help="bfloat16, float16 or float32.")] = "bfloat16",
    repeats: Annotated[int, typer.Option(min=1, help="Runs of each measurement; the median counts.")] = 3,
    num_threads: Annotated[int | None, typer.Option(min=1, help="Default: the cores that we are given.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON line for each measurement.")] = False,
) -> None:
    """Measure this machine: tokens a second in prefill and decode, and 16 requests at once."""
    import torch

    from milepost.bench.measure import Bench
    from milepost.config import EngineConfig
    from milepost.engine.build import assemble, set_threads, settle
    from milepost.models.loader.load import load_model, resolve_dtype
    from milepost.models.loader.random_weights import random_source

    set_threads(num_threads)
    config = EngineConfig(model=shape, dtype=dtype, enable_prefix_caching=False)
    source = random_source(shapes.config_of(shape), shape)
    loaded = load_model(source, resolve_dtype(dtype, source), torch.device("cpu"))
    engine = assemble(loaded, config)
    settle()
    table = Table(title=f"{shape}, {dtype}, {torch.get_num_threads()} threads, median of {repeats}", box=None)
    for title in ("measurement", "value", "unit", "spread"):
        table.add_column(title, justify="left" if title in ("measurement", "unit") else "right")
    with Console(stderr=True).status("measuring"):
        for found in Bench(engine, repeats).run():
            if as_json:
                row = {"shape": shape, "name": found.name, "value": found.value, "unit": found.unit}
                sys.stdout.write(json.dumps({**row, "spread": found.spread}) + "\n")
                sys.stdout.flush()
            table.add_row(found.name, f"{found.value:,.1f}", found.unit, f"{found.spread:.0%}")
    if not as_json:
        Console().print(table)
