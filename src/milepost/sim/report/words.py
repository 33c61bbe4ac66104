"""Numbers in a reader's words."""

from __future__ import annotations

SPACE = "\u00a0"
"""Between a number and its unit: no line ends there."""

UNITS = ("B", "kB", "MB", "GB", "TB")


def percent(share: float) -> str:
    """One decimal where shares differ little or are small."""
    value = share * 100
    return f"{value:.{0 if 9.95 <= value < 89.95 or value in (0, 100) else 1}f}{SPACE}%"


def in_bytes(number: int) -> str:
    """Powers of 1000, three digits that count."""
    value, unit = float(number), 0
    while value >= 999.5 and unit < len(UNITS) - 1:
        value, unit = value / 1000, unit + 1
    return f"{value:.3g}{SPACE}{UNITS[unit]}"


def as_flag(number: int) -> str:
    """As `--kv-cache-memory-bytes` reads it, and exactly."""
    for unit, name in ((10**9, "GB"), (10**6, "MB")):
        if number % unit == 0:
            return f"{number // unit}{name}"
    return str(number)


def in_time(seconds: float) -> str:
    for size, name in ((86400, "day"), (3600, "hour"), (60, "minute"), (1, "second")):
        if seconds >= size:
            number = f"{seconds / size:.3g}"
            return f"{number}{SPACE}{name}{'' if number == '1' else 's'}"
    return f"{seconds * 1000:.3g}{SPACE}ms"
