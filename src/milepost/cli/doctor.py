"""`milepost doctor`: what machine this is, which kernels run, exact or not and why, and what fits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from milepost.machine import Machine
    from milepost.ops import Choice


def doctor(
    model: Annotated[str | None, typer.Argument(help="Also say whether this model fits.", show_default=False)] = None,
    dtype: Annotated[str, typer.Option(help="auto, bfloat16, float16 or float32.")] = "auto",
) -> None:
    """Say what this machine is, which kernels serve it, whether they are exact, and what fits."""
    import torch

    from milepost.config import EngineConfig
    from milepost.machine import describe_machine
    from milepost.models.loader.load import open_model, resolve_dtype
    from milepost.ops import Target, bind

    config = EngineConfig(model=model, dtype=dtype)
    machine = describe_machine()
    source = open_model(model, dtype) if model is not None else None
    chosen = resolve_dtype(dtype, source) if source else torch.bfloat16
    _, table = bind(Target(torch.device("cpu"), chosen))
    console = Console(highlight=False, soft_wrap=True)
    _say_machine(console, machine)
    _say_kernels(console, table, str(chosen).removeprefix("torch."))
    if source is None:
        _say_room(console, machine)
        return
    from milepost.engine.memory import plan_memory, size
    from milepost.models.loader.meta import build_on_meta

    weight_bytes = source.tensors.num_bytes(chosen)
    free = machine.available_bytes - weight_bytes
    if free < 0:
        console.print(f"[bold]fits[/]     no: {model} takes {size(weight_bytes)} as {chosen}")
        raise typer.Exit(2)
    shape = build_on_meta(source.config, len(source.tensors.names()))
    plan = plan_memory(shape.layer_specs(), chosen.itemsize, shape.max_model_len, weight_bytes, free, config)
    console.print(f"[bold]fits[/]     yes; {plan.line()}")


def _say_machine(console: Console, machine: Machine) -> None:
    import torch

    from milepost.engine.memory import size

    memory = f"{size(machine.memory_bytes)} of memory, {size(machine.available_bytes)} free"
    console.print(f"[bold]machine[/]  {machine.cpu}, {machine.num_cpus} cores, {memory}")
    console.print(f"         instruction sets: {', '.join(machine.instruction_sets) or 'none that Milepost looks for'}")
    console.print(f"[bold]torch[/]    {torch.__version__}, {torch.get_num_threads()} threads")


def _say_kernels(console: Console, table: list[Choice], dtype: str) -> None:
    from milepost.ops import exactness

    rows = Table(box=None, pad_edge=False)
    for title in ("op", "backend", "rows independent", "why not others"):
        rows.add_column(title)
    for choice in table:
        reasons = "; ".join(f"{backend}: {reason}" for backend, reason in choice.refused)
        rows.add_row(choice.op, choice.backend, "yes" if choice.exact else "no", reasons)
    console.print(f"[bold]kernels[/]  in {dtype}:")
    console.print(rows)
    console.print(f"[bold]exact[/]    {exactness(table)}")


def _say_room(console: Console, machine: Machine) -> None:
    from milepost.engine.memory import CACHE_SHARE

    billions = machine.available_bytes * (1 - CACHE_SHARE) / 2 / 1e9
    console.print(
        f"[bold]fits[/]     models up to about {billions:.1f} B parameters in bfloat16, with room for a KV cache"
    )
