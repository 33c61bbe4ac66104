"""The command `milepost`. One file per command; each imports what is heavy only once it runs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from milepost import __version__
from milepost.cli import bench, chat, doctor, generate, serve
from milepost.errors import MilepostError

EXIT_ERROR = 2
EXIT_INTERRUPT = 130

app = typer.Typer(
    name="milepost",
    help="Serve language models, hybrid ones above all, and reuse the prompt prefixes that they share.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # its boxes cut long option names
)
app.command("serve")(serve.serve)
app.command("generate")(generate.generate)
app.command("chat")(chat.chat)
app.command("bench")(bench.bench)
app.command("doctor")(doctor.doctor)


def _print_version(asked: bool) -> None:
    if asked:
        print(f"milepost {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Options before the command."""


def main(args: Sequence[str] | None = None) -> int:
    """Runs a command line (None: this process's). Errors that a user can act on are two lines on stderr and exit 2."""
    try:
        app(args=args, prog_name="milepost")
    except MilepostError as error:
        print(f"error: {error.message}", file=sys.stderr)
        if error.hint:
            print(f"hint: {error.hint}", file=sys.stderr)
        return EXIT_ERROR
    except OSError as error:  # a closed output, a folder that may not be read
        if isinstance(error, BrokenPipeError):
            return EXIT_ERROR
        print(f"error: {error}", file=sys.stderr)
        print("hint: look at the file or stream that it names, and at its permissions", file=sys.stderr)
        return EXIT_ERROR
    except KeyboardInterrupt:
        return EXIT_INTERRUPT
    return 0
