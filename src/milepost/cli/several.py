"""Options that take several values after one flag, as vLLM's do: `--served-model-name a b`."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from typing import Any

from typer.core import TyperCommand

FLAGS = frozenset({"--served-model-name"})


class TakesSeveral(TyperCommand):
    """Its parser knows one value a flag; so the flag is repeated for it."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, list(repeated(args)))


def repeated(args: Sequence[str], flags: Container[str] = FLAGS) -> Iterator[str]:
    """`args` with a flag of `flags` before each of its values: all up to the next flag. `--flag=a` takes one."""
    flag, num_values = "", 0
    for arg in args:
        if flag and (num_values == 0 or not arg.startswith("-")):
            if num_values:
                yield flag
            num_values += 1
        else:
            flag, num_values = (arg if arg in flags else ""), 0
        yield arg
