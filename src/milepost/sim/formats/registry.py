"""Which formats there are, and how one is told from another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from milepost.errors import TraceError
from milepost.sim.formats import mooncake, ragpulse, recording, weka
from milepost.sim.formats.lines import Record, records
from milepost.sim.trace import Trace


@dataclass(frozen=True, slots=True)
class Format:
    """`recognises` a file by its first object; `read` gives the trace in it."""

    recognises: Callable[[Record], bool]
    read: Callable[[Path], Trace]


FORMATS = {
    "milepost": Format(recording.recognises, recording.read),
    "mooncake": Format(mooncake.recognises, mooncake.read),
    "weka": Format(weka.recognises, weka.read),
    "ragpulse": Format(ragpulse.recognises, ragpulse.read),
}


def open_trace(path: Path, name: str | None = None) -> Trace:
    """The trace in a file, plain or .gz, or in RAGPulse's folder. `name`: of its format (None: its first line tells).
    TraceError if nothing there can be read as one; damaged lines are found when they are reached."""
    if name is not None and name not in FORMATS:
        raise TraceError(f"there is no format {name!r}", f"use one of {', '.join(FORMATS)}")
    path = _file(path)
    return (FORMATS[name] if name is not None else _recognise(path)).read(path)


def _file(path: Path) -> Path:
    if not path.exists():
        raise TraceError(f"there is no file {path}", "give the path of a trace")
    if not path.is_dir():
        return path
    for name in ("0_trace.jsonl.gz", "0_trace.jsonl"):
        if (path / name).exists():
            return path / name
    raise TraceError(f"{path} is a folder, and not RAGPulse's", "give the path of a trace's file")


def _recognise(path: Path) -> Format:
    for _, first in records(path):
        for known in FORMATS.values():
            if known.recognises(first):
                return known
        fields = ", ".join(list(first)[:6])
        raise TraceError(
            f"{path} is a trace of no known format: its first line has {fields or 'no fields'}",
            f"`--format` takes {', '.join(FORMATS)}",
        )
    raise TraceError(f"{path} is empty", "give the path of a trace")
