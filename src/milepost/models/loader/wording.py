"""What loaders' messages share."""

from __future__ import annotations

from collections.abc import Sequence


def few(names: Sequence[str], most: int = 3) -> str:
    """The first names, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def one_line(error: BaseException) -> str:
    """What an error says, for one line of a message: its first line, or else its kind."""
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__
