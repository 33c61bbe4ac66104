"""What the machine gives while engines are measured: bytes read, dot products, and whether anyone else is at work."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).with_name("machine.c")
QUIET_SHARE = 0.05
"""Of the processors' time that others may use before figures are not worth much."""


@dataclass(frozen=True)
class Speed:
    """Bytes read from memory and bf16 operations (a multiplication or an addition is one), both a second."""

    read_bytes: float
    dot_ops: float


class Machine:
    """Measures itself again and again in a run; what counts is the median. Without a C compiler nothing is known."""

    def __init__(self, folder: Path, threads: int) -> None:
        """Compiles the program into `folder`."""
        self._samples: list[Speed] = []
        self._command: list[str] | None = None
        compiler = shutil.which(os.environ.get("CC", "cc"))
        if compiler is None:
            return
        folder.mkdir(parents=True, exist_ok=True)
        program = folder / "machine"
        flags = ["-O3", "-march=native", "-pthread"]
        subprocess.run([compiler, *flags, str(SOURCE), "-o", str(program)], check=True)
        self._command = [str(program), str(threads)]

    def sample(self) -> Speed | None:
        """What it gives now; takes a second or two."""
        if self._command is None:
            return None
        found = json.loads(subprocess.run(self._command, check=True, capture_output=True, text=True).stdout)
        self._samples.append(Speed(found["read_bytes_per_s"], found["dot_ops_per_s"]))
        return self._samples[-1]

    @property
    def speed(self) -> Speed | None:
        if not self._samples:
            return None
        return Speed(
            statistics.median(s.read_bytes for s in self._samples), statistics.median(s.dot_ops for s in self._samples)
        )


def busy_share(seconds: float = 2.0, stat: Path = Path("/proc/stat")) -> float:
    """The share of all processors' time that was used while this slept."""
    busy, total = _times(stat)
    time.sleep(seconds)
    busy_now, total_now = _times(stat)
    return (busy_now - busy) / max(1, total_now - total)


def _times(stat: Path) -> tuple[int, int]:
    """(ticks in use, all ticks) since the machine's start."""
    ticks = [int(word) for word in stat.read_text().splitlines()[0].split()[1:9]]
    idle = ticks[3] + ticks[4]
    return sum(ticks) - idle, sum(ticks)
