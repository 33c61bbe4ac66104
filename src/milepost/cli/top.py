"""`milepost top`: what a running server does, as one watches it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from milepost.cli.remote import DEFAULT_URL, base_url, first_key, get_json, get_text, unknown_server

if TYPE_CHECKING:
    from rich.console import RenderableType

    from milepost.cli.load import Look


def top(
    url: Annotated[str, typer.Option(help="Of the server.")] = DEFAULT_URL,
    api_key: Annotated[str | None, typer.Option(envvar="MILEPOST_API_KEY", show_default=False)] = None,
    interval: Annotated[float, typer.Option(min=0.1, max=3600, help="Seconds between two looks.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Two looks, plain lines, and the end.")] = False,
) -> None:
    """Watch a running server: requests, tokens a second, the prefix cache, times to the first token. Ctrl-C ends it."""
    from milepost.cli.load import lines

    key = first_key(api_key)
    looks = _looks(url, key, interval)
    before, now = next(looks), next(looks)
    if once:
        for title, told in lines(before, now):
            print(f"{title:10} {told}")
        return
    from rich.live import Live

    with contextlib.suppress(KeyboardInterrupt), Live(_shown(url, before, now), auto_refresh=False) as live:
        for after in looks:
            before, now = now, after
            live.update(_shown(url, before, now), refresh=True)


def _looks(url: str, key: str | None, interval: float) -> Iterator[Look]:
    """One now, and one more after each `interval` seconds; never ends."""
    from milepost.cli.load import read

    while True:
        base = base_url(url)
        cache = get_json(url, "/cache", key, fields=("policy", "bytes", "counters"), tree="false")
        try:
            yield read(time.monotonic(), get_text(url, "/metrics", key), cache)
        except (ValueError, KeyError, TypeError):
            raise unknown_server(base, "/metrics has not the names of ours") from None
        time.sleep(interval)


def _shown(url: str, before: Look, now: Look) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    from milepost.cli.answer import for_terminal
    from milepost.cli.load import lines

    when = time.strftime("%H:%M:%S")
    table = Table.grid(padding=(0, 2))
    table.title, table.title_justify = Text(f"milepost top, {base_url(url)}, {when}", style="bold"), "left"
    for title, told in lines(before, now):
        table.add_row(Text(title, style="dim"), Text(for_terminal(told)))
    return table
