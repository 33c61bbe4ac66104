"""RAGPulse (flashserve/RAGPulse, data/): prompts put together from parts, each part with an id and a length.

    0_trace.jsonl       {"timestamp": "82", "input_length": 3112, "output_length": 192,
                         "hash_ids": {"sys_prompt": [8302], "passages_ids": [7398, 7370], "history": [], ...}}
    1_sys_prompt.jsonl  {"sys_prompt_id": 8302, "token_length": 512}, and so on: a file for each sort of part

Parts stand in the prompt in the order of `PARTS`. Blocks of 64 tokens are equal if the same parts lie in them, and in
all before them, at the same places. Prompts have a few tokens more than their parts: they are taken to come last.
Timestamps are in
seconds. The published file holds two weeks, both from 0 on: by time they are one, of twice the traffic.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from milepost.errors import TraceError
from milepost.sim.formats.lines import Record, reading, records, whole
from milepost.sim.trace import Blocks, Trace, TraceRequest

BLOCK_SIZE = 64

PARTS = (
    ("sys_prompt", "1_sys_prompt", "sys_prompt_id"),
    ("passages_ids", "2_passages", "passage_id"),
    ("history", "3_history", "history_id"),
    ("web_search", "5_web_search", "web_search_id"),
    ("user_input", "4_user_input", "user_input_id"),
)
"""In the order of the prompt: the name in a request, the file, the id's name there."""

Part = tuple[str, int]
Lengths = dict[Part, int]
Piece = tuple[Part, int, int]
"""Of a part, the tokens from one place to another."""
Known = dict[tuple[int, tuple[Piece, ...]], int]
"""Of each block its id, by the id of the block before it and by what lies in it."""


def recognises(first: Record) -> bool:
    return isinstance(first.get("hash_ids"), dict)


def read(path: Path) -> Trace:
    return Trace(path.name, BLOCK_SIZE, lambda: iter(sorted(_requests(path), key=lambda request: request.time_ms)))


def _requests(path: Path) -> Iterator[TraceRequest]:
    lengths, known = _lengths(path), Known()
    for number, record in records(path):
        with reading(path, number):
            parts = [(sort, part) for sort, _, _ in PARTS for part in record["hash_ids"][sort]]
            for sort, part in parts:
                if (sort, part) not in lengths:
                    raise ValueError(f"{sort} {part} has no length")
            length = whole(record["input_length"], "input_length")
            blocks = _blocks(parts, lengths, known)[: length // BLOCK_SIZE]
            answer, time_ms = whole(record["output_length"], "output_length"), 1000 * float(record["timestamp"])
        yield TraceRequest(time_ms, "", length, answer, blocks)


def _lengths(path: Path) -> Lengths:
    lengths: Lengths = {}
    for sort, stem, name in PARTS:
        for number, record in records(_beside(path, stem)):
            with reading(path, number):
                lengths[sort, whole(record[name], name)] = whole(record["token_length"], "token_length")
    return lengths


def _beside(path: Path, stem: str) -> Path:
    for name in (f"{stem}.jsonl.gz", f"{stem}.jsonl"):
        if (path.parent / name).exists():
            return path.parent / name
    raise TraceError(f"{path} needs {stem}.jsonl(.gz) beside it", "its parts' lengths are there: copy all files")


def _blocks(parts: list[Part], lengths: Lengths, known: Known) -> Blocks:
    """Ids of the full blocks; new ones go on from those that are known."""
    ids: list[int] = []
    pieces: list[Piece] = []
    room, before = BLOCK_SIZE, -1
    for part in parts:
        place, end = 0, lengths[part]
        while place < end:
            step = min(room, end - place)
            pieces.append((part, place, place + step))
            place, room = place + step, room - step
            if not room:
                before = known.setdefault((before, tuple(pieces)), len(known))
                ids.append(before)
                room = BLOCK_SIZE
                pieces.clear()
    return np.array(ids, np.int64)
