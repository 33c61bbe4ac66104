"""Lines of JSON, compressed or not, and what is said of a damaged one."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from milepost.errors import TraceError
from milepost.sim.trace import Blocks

GZIP_MAGIC = b"\x1f\x8b"
MAX_SHOWN = 60

Record = dict[str, Any]


def records(path: Path, *, cut_short: bool = False) -> Iterator[tuple[int, Record]]:
    """The objects of a file, one a line, each with the number of its line; empty lines are passed over.

    `cut_short`: whoever wrote the file may have been stopped in the middle, so a last line that is not whole is no
    error. TraceError for a damaged line.
    """
    for number, line in _lines(path, cut_short):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            if cut_short and not line.endswith(b"\n"):
                return
            raise damaged(path, number, f"it is not JSON: {_shown(line)}") from error
        if not isinstance(record, dict):
            raise damaged(path, number, f"it is not an object: {_shown(line)}")
        yield number, record


def _lines(path: Path, cut_short: bool) -> Iterator[tuple[int, bytes]]:
    with path.open("rb") as raw:
        packed = raw.read(len(GZIP_MAGIC)) == GZIP_MAGIC
    number = 0
    try:
        with gzip.open(path) if packed else path.open("rb") as file:
            for line in file:
                number += 1
                yield number, line
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        if not (cut_short and isinstance(error, EOFError)):
            raise damaged(path, number + 1, f"the compressed data end badly: {error}") from error


def damaged(path: Path, number: int, what: str) -> TraceError:
    return TraceError(f"{path}, line {number}: {what}", "mend or remove that line; `--format` says how it is read")


@contextmanager
def reading(path: Path, number: int) -> Iterator[None]:
    """Makes what goes wrong with a record's fields an error that names its line."""
    try:
        yield
    except KeyError as error:
        raise damaged(path, number, f"the field {error} lacks") from error
    except (TypeError, ValueError, IndexError, AttributeError, OverflowError) as error:
        raise damaged(path, number, f"a field is not what it should be: {error}") from error


def whole(value: object, name: str) -> int:
    """`value`, a whole number from 0 on; ValueError otherwise."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{name} is {_shown(value)}")
    return value


def block_ids(value: object, count: int, name: str) -> Blocks:
    """The first `count` ids of a list of at least so many; ValueError otherwise."""
    if not isinstance(value, list) or len(value) < count:
        raise ValueError(f"{name} does not name {count} blocks")
    ids = np.array(value[:count], dtype=None if count else np.int64)
    if ids.ndim != 1 or not np.issubdtype(ids.dtype, np.integer):
        raise ValueError(f"{name} does not hold whole numbers below 2^63")
    return ids.astype(np.int64, copy=False)


def _shown(value: object) -> str:
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else repr(value)
    text = text.strip()
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."
