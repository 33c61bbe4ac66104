"""Command lines that cannot be read, told like every other error: what is wrong, and what to do."""

from __future__ import annotations

from typing import Any

import typer

UsageError: type[Exception] = typer.BadParameter.__mro__[1]
"""Click's. Newer versions of typer bring click along under another name, and show nothing but its subclasses."""


def describe(error: Any) -> tuple[str, str]:
    """The error and its hint, a line each."""
    command = error.ctx.command_path if error.ctx is not None else "milepost"
    hint = f"`{command} --help` lists what it takes"
    options = getattr(error, "possibilities", None)
    if options:
        return _line(error.message), f"did you mean {' or '.join(options)}? {hint}"
    return _line(error.format_message()), hint


def _line(message: str) -> str:
    line = " ".join(message.split()).removesuffix(".")
    return line[:1].lower() + line[1:]
