"""Coding agents' traces (callanjfox/kv-cache-tester), a stream of requests a line.

    {"ns": "trace_0001", "block_size": 64,
     "requests": [{"t": 0.0, "in": 71175, "out": 169, "keep": 0, "new": [[1, 1112]]}, ...]}

The ids of a request are the first `keep` of the one before it, and `count` new ones from `start` on for each pair in
`new`; they mean something within their `ns`. `t` is in seconds from the stream's start, and the file does not say when
that was: the i-th `ns`, in order of appearance, is taken to start i / n of a week after the first.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from milepost.sim.formats.lines import Record, reading, records, whole
from milepost.sim.trace import Blocks, Trace, TraceRequest

WEEK_MS = 604_800_000.0
MAX_BLOCKS = 1 << 24
"""Of one request; more is a damaged count, not a prompt."""


def recognises(first: Record) -> bool:
    return "ns" in first and "requests" in first


def read(path: Path) -> Trace:
    number, first = next(records(path), (1, {}))
    with reading(path, number):
        block_size = whole(first["block_size"], "block_size")
        if not block_size:
            raise ValueError("block_size is 0")
    return Trace(path.name, block_size, lambda: _requests(path, block_size))


def _requests(path: Path, block_size: int) -> Iterator[TraceRequest]:
    streams = list(records(path))
    places: dict[str, int] = {}
    for number, stream in streams:
        with reading(path, number):
            if stream.get("block_size", block_size) != block_size:
                raise ValueError(f"block_size is {stream['block_size']} here and {block_size} in the first line")
            places.setdefault(str(stream["ns"]), len(places))
    apart_ms = WEEK_MS / max(1, len(places))
    read_streams = (_stream(path, *one, block_size, apart_ms * places[str(one[1]["ns"])]) for one in streams)
    yield from heapq.merge(*read_streams, key=lambda request: request.time_ms)


def _stream(path: Path, number: int, stream: Record, block_size: int, start_ms: float) -> Iterator[TraceRequest]:
    scope, ids = str(stream["ns"]), np.empty(0, np.int64)
    with reading(path, number):
        requests = list(stream["requests"])
    for request in requests:
        with reading(path, number):
            ids = _ids(ids, request)
            length = whole(request["in"], "in")
            if len(ids) < length // block_size:
                raise ValueError(f"a request of {length} tokens has {len(ids)} blocks")
            time_ms, answer = start_ms + 1000 * float(request["t"]), whole(request["out"], "out")
        yield TraceRequest(time_ms, scope, length, answer, ids[: length // block_size])


def _ids(before: Blocks, request: Record) -> Blocks:
    keep = whole(request["keep"], "keep")
    if keep > len(before):
        raise ValueError(f"keep is {keep}, of {len(before)} blocks")
    parts = [before[:keep]]
    for start, count in request["new"]:
        if whole(count, "a count in new") > MAX_BLOCKS:
            raise ValueError(f"new has {count} blocks at once")
        parts.append(np.arange(whole(start, "a start in new"), start + count, dtype=np.int64))
    return np.concatenate(parts)
