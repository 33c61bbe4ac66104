"""Our own recordings, written by `milepost serve --record FILE`. A header, then a request a line as each ends:

    {"format": "milepost-trace", "version": 1, "block_size": 64,
     "model": "...", "kv_bytes_per_token": 12288, "checkpoint_bytes": 19535462}
    {"t_ms": 1042.7, "scope": 3, "in": 6758, "out": 500, "blocks": [7261552839912734012, ...],
     "answer": [4611686018427387904, ...], "boundaries": [12, 105]}

`blocks`: a keyed hash below 2^63 for each full block of the prompt, chained, so that it names all that leads up to it;
the key dies with the server. `answer` goes on from there through the answer. `boundaries`: in blocks. `t_ms`: when the
request's first step was. A server that is killed leaves half a line: it is passed over. A header between requests
begins another run of the server, whose hashes have nothing to do with those before.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from milepost.errors import TraceError
from milepost.sim.formats.lines import Record, block_ids, damaged, reading, records, whole
from milepost.sim.sizes import Sizes
from milepost.sim.trace import Trace, TraceRequest, in_time_order

FORMAT = "milepost-trace"
VERSION = 1


def recognises(first: Record) -> bool:
    return first.get("format") == FORMAT


def read(path: Path) -> Trace:
    number, header = next(records(path, cut_short=True), (1, {}))
    block_size, sizes = _header(path, number, header)
    return Trace(path.name, block_size, lambda: in_time_order(_requests(path, block_size)), sizes)


def _header(path: Path, number: int, header: Record) -> tuple[int, Sizes]:
    with reading(path, number):
        if header["format"] != FORMAT:
            raise ValueError(f"the format is {header['format']!r}, not {FORMAT!r}")
        if header["version"] != VERSION:
            hint = "read it with the release that wrote it, or a later one"
            raise TraceError(f"{path} has version {header['version']!r}, and this release reads {VERSION}", hint)
        block_size = whole(header["block_size"], "block_size")
        if not block_size:
            raise ValueError("block_size is 0")
        kv = whole(header["kv_bytes_per_token"], "kv_bytes_per_token")
        state = whole(header["checkpoint_bytes"], "checkpoint_bytes")
        return block_size, Sizes(kv, state, str(header.get("model", "")))


def _requests(path: Path, block_size: int) -> Iterator[TraceRequest]:
    run, start_ms, last_ms = 0, 0.0, 0.0
    for number, record in records(path, cut_short=True):
        if recognises(record):
            run, start_ms = run + 1, last_ms
            if _header(path, number, record)[0] != block_size:
                raise damaged(path, number, f"its blocks are not of {block_size} tokens, as those before")
            continue
        with reading(path, number):
            length = whole(record["in"], "in")
            blocks = block_ids(record["blocks"], length // block_size, "blocks")
            time_ms, answer = start_ms + float(record["t_ms"]), whole(record["out"], "out")
            scope = f"{run}/{whole(record['scope'], 'scope')}"
            answered = record.get("answer", [])
            further = block_ids(answered, len(answered), "answer")
            places = tuple(whole(place, "boundaries") for place in record.get("boundaries", ()))
        last_ms = max(last_ms, time_ms)
        yield TraceRequest(time_ms, scope, length, answer, blocks, further, places)
