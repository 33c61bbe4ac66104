"""The command `milepost`. One file per command; each imports what is heavy only once it runs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from milepost import __version__
from milepost.cli import advise, bench, cache, chat, doctor, explain, generate, launch, replay, serve, top, usage
from milepost.cli.several import TakesSeveral
from milepost.errors import MilepostError
from milepost.machine import wait_briefly

EXIT_ERROR = 2
EXIT_INTERRUPT = 130

app = typer.Typer(
    name="milepost",
    help="Serve language models, hybrid ones above all, and reuse the prompt prefixes that they share.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # its boxes cut long option names
)
app.command("serve", cls=TakesSeveral)(serve.serve)
app.command("generate")(generate.generate)
app.command("chat")(chat.chat)
app.command("bench")(bench.bench)
app.command("doctor")(doctor.doctor)
app.command("explain")(explain.explain)
app.command("replay")(replay.replay)
app.command("advise")(advise.advise)
app.command("top")(top.top)
app.command("launch")(launch.launch)
app.add_typer(cache.app, name="cache")


def _print_version(asked: bool) -> None:
    if asked:
        print(f"milepost {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Options before the command."""
    if context.invoked_subcommand is None:
        print(context.get_help(), file=sys.stderr)
        raise typer.Exit(EXIT_ERROR)


def main(args: Sequence[str] | None = None) -> int:
    """Runs a command line (None: this process's); the exit code. Errors that a user can act on, wrong usage too, are
    two lines on stderr and code 2."""
    wait_briefly()
    try:
        code = app(args=args, prog_name="milepost", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except usage.UsageError as error:
        return _failed(*usage.describe(error))
    except MilepostError as error:
        return _failed(error.message, error.hint)
    except OSError as error:  # a closed output, a folder that may not be read
        if isinstance(error, BrokenPipeError):
            return EXIT_ERROR
        return _failed(str(error), "look at the file or stream that it names, and at its permissions")
    except (KeyboardInterrupt, typer.Abort):
        return EXIT_INTERRUPT


def _failed(error: str, hint: str) -> int:
    print(f"error: {error}", file=sys.stderr)
    if hint:
        print(f"hint: {hint}", file=sys.stderr)
    return EXIT_ERROR
