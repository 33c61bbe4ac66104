"""Mooncake's traces (kvcache-ai/Mooncake, FAST25-release/traces): a request a line, ids of 512 tokens.

    {"timestamp": 0, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1, 2, ...]}

Ids are chained by prefix; the last may stand for a part of a block, and is left out then.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from milepost.sim.formats.lines import Record, block_ids, reading, records, whole
from milepost.sim.trace import Trace, TraceRequest, in_time_order

BLOCK_SIZE = 512


def recognises(first: Record) -> bool:
    return isinstance(first.get("hash_ids"), list)


def read(path: Path) -> Trace:
    return Trace(path.name, BLOCK_SIZE, lambda: in_time_order(_requests(path)))


def _requests(path: Path) -> Iterator[TraceRequest]:
    for number, record in records(path):
        with reading(path, number):
            length = whole(record["input_length"], "input_length")
            blocks = block_ids(record["hash_ids"], length // BLOCK_SIZE, "hash_ids")
            time_ms, answer = float(record["timestamp"]), whole(record["output_length"], "output_length")
        yield TraceRequest(time_ms, "", length, answer, blocks)
