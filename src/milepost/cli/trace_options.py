"""What commands that replay a trace are told: the trace, the sizes of a model, and what its prompts take."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from milepost.cli.options import parse_size
from milepost.errors import ConfigError
from milepost.sim.formats import NAMES
from milepost.sim.sizes import Sizes

if TYPE_CHECKING:
    from milepost.sim.advise import Progress
    from milepost.sim.cost import Cost
    from milepost.sim.report.data import Bounds
    from milepost.sim.trace import Trace

DEFAULT_SHAPE = "qwen3.5-0.8b"
ELEMENT_BYTES = 2
"""Of keys and values, in bfloat16 and float16."""

TraceFile = Annotated[
    Path,
    typer.Argument(metavar="TRACE", help="What `milepost serve --record` wrote, or another trace.", show_default=False),
]
Format = Annotated[
    str | None,
    typer.Option("--format", help=f"Of the trace: {', '.join(NAMES)}.", show_default="its first line tells"),
]
Model = Annotated[
    str | None,
    typer.Option(
        help="Whose sizes count: a shape of `milepost bench`, a config.json, or a model.",
        show_default=f"the recorded one, else {DEFAULT_SHAPE}",
    ),
]
KvBytes = Annotated[
    int | None,
    typer.Option("--kv-bytes-per-token", parser=parse_size, metavar="BYTES", help="Instead of the model's."),
]
CheckpointBytes = Annotated[
    int | None,
    typer.Option(
        "--checkpoint-bytes", parser=parse_size, metavar="BYTES", help="Instead of the model's; 0: no states."
    ),
]
CostFile = Annotated[
    Path | None,
    typer.Option(
        "--cost",
        metavar="FILE",
        help="Times of prompts, from `milepost bench SHAPE --json`.",
        show_default=f"{DEFAULT_SHAPE}'s where that is the model",
    ),
]


def sizes_for(trace: Trace, model: str | None, kv_bytes: int | None, checkpoint_bytes: int | None) -> Sizes:
    """By flags, the named model, the recording, or the default shape, in this order. ConfigError, ModelError."""
    known = trace.sizes if model is None and trace.sizes is not None else None
    if kv_bytes is not None and checkpoint_bytes is not None:
        found = Sizes(kv_bytes, checkpoint_bytes, model or (known.model if known else ""))
    else:
        found = known or _of_model(model or DEFAULT_SHAPE)
        kv = found.kv_bytes_per_token if kv_bytes is None else kv_bytes
        state = found.checkpoint_bytes if checkpoint_bytes is None else checkpoint_bytes
        found = Sizes(kv, state, found.model)
    if not found.kv_bytes_per_token and not found.checkpoint_bytes:
        raise ConfigError("a model without keys and values and without states has nothing to keep", "give its sizes")
    return found


def cost_for(path: Path | None, sizes: Sizes) -> Cost | None:
    """None where nothing is known of the model's times."""
    from milepost.sim.cost import DEFAULT, Cost

    if path is not None:
        return Cost.from_bench(path)
    return DEFAULT if sizes.model.lower() == DEFAULT_SHAPE else None


def bounds_of(trace: Trace, sizes: Sizes, budgets: list[int]) -> dict[int, Bounds]:
    from milepost.sim.limits import limits
    from milepost.sim.report.data import Bounds

    return {found.limit_bytes: Bounds(found.upper_bound, found.feasible) for found in limits(trace, sizes, budgets)}


@contextlib.contextmanager
def replaying() -> Iterator[Progress]:
    """A bar on stderr while inside, where that is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    console = Console(stderr=True)
    columns = (TextColumn("Replaying"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Bar(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("replay", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _of_model(name: str) -> Sizes:
    from milepost.bench import shapes
    from milepost.models.loader.load import open_model
    from milepost.models.loader.meta import build_on_meta
    from milepost.specs import BLOCK_SIZE, checkpoint_bytes, kv_block_bytes

    path = Path(name)
    if name in shapes.names():
        config = shapes.config_of(name)
    elif path.suffix == ".json" or (path / "config.json").is_file():
        config = _read_config(path if path.suffix == ".json" else path / "config.json")
    else:
        config = open_model(name).config
    specs = build_on_meta(config, sys.maxsize).layer_specs()
    kv = kv_block_bytes(specs, ELEMENT_BYTES) // BLOCK_SIZE
    return Sizes(kv, checkpoint_bytes(specs, ELEMENT_BYTES), name.rstrip("/").rpartition("/")[2])


def _read_config(path: Path) -> dict[str, object]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no JSON"
        raise ConfigError(f"{path} cannot be read: {reason}", "give a model's config.json") from None
    if not isinstance(found, dict):
        raise ConfigError(f"{path} is no model's config", "give a model's config.json")
    return found
