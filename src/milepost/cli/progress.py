"""A bar for the bytes of a model that loads."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

Report = Callable[[int, int], None]
"""Called with the bytes done and the bytes in total."""


@contextlib.contextmanager
def loading_bar() -> Iterator[Report]:
    """Shows a bar on stderr while inside, and nothing once left; where stderr is no terminal it shows nothing.

    The report may be called from any thread.
    """
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("Loading"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("load", total=None)

        def report(done_bytes: int, total_bytes: int) -> None:
            progress.update(task, completed=done_bytes, total=total_bytes or None)

        yield report
