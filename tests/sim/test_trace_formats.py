"""Traces of four formats, found by their first line, and what is said of files that are damaged."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from milepost.errors import TraceError
from milepost.sim.formats import NAMES
from milepost.sim.formats.registry import FORMATS, open_trace
from milepost.sim.sizes import Sizes
from milepost.sim.trace import Trace

MOONCAKE = [
    {"timestamp": 0, "input_length": 1300, "output_length": 5, "hash_ids": [0, 1, 2]},
    {"timestamp": 20, "input_length": 1024, "output_length": 6, "hash_ids": [0, 3]},
]
WEKA = [
    {
        "ns": "a",
        "block_size": 64,
        "requests": [
            {"t": 0.0, "in": 200, "out": 9, "keep": 0, "new": [[1, 3]]},
            {"t": 400_000.0, "in": 330, "out": 9, "keep": 2, "new": [[4, 1], [9, 3]]},
        ],
    },
    {"ns": "b", "requests": [{"t": 1.5, "in": 64, "out": 9, "keep": 0, "new": [[1, 1]]}]},
]
HEADER = {
    "format": "milepost-trace",
    "version": 1,
    "block_size": 64,
    "model": "tiny",
    "kv_bytes_per_token": 192,
    "checkpoint_bytes": 23040,
}
RECORDING: list[dict[str, Any]] = [
    HEADER,
    {"t_ms": 7.5, "scope": 0, "in": 130, "out": 3, "blocks": [2**63 - 1, 5]},
    {"t_ms": 2.5, "scope": 1, "in": 70, "out": 4, "blocks": [6]},
]
PARTS = {
    "1_sys_prompt": [{"sys_prompt_id": part, "token_length": size} for part, size in ((1, 100), (5, 64), (6, 64))],
    "2_passages": [{"passage_id": 2, "token_length": 50}, {"passage_id": 3, "token_length": 60}],
    "3_history": [],
    "4_user_input": [{"user_input_id": 4, "token_length": 20}],
    "5_web_search": [],
}


def lines(records: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


def written(path: Path, records: list[dict[str, Any]]) -> Path:
    path.write_text(lines(records))
    return path


def pulse(timestamp: str, passages: list[int], length: int, system: int = 1) -> dict[str, Any]:
    parts = {"sys_prompt": [system], "passages_ids": passages, "history": [], "web_search": [], "user_input": [4]}
    return {"timestamp": timestamp, "input_length": length, "output_length": 1, "hash_ids": parts}


def ragpulse(folder: Path) -> Path:
    for stem, parts in PARTS.items():
        written(folder / f"{stem}.jsonl", parts)
    requests = [pulse("9", [2, 3], 237), pulse("3", [2], 175), pulse("12", [3], 185)]
    with gzip.open(folder / "0_trace.jsonl.gz", "wt") as file:
        file.write(lines(requests) + "\n")
    return folder


def told(trace: Trace) -> list[tuple[float, str, int, int, list[int]]]:
    return [(r.time_ms, r.scope, r.input_length, r.output_length, r.blocks.tolist()) for r in trace]


def test_mooncake_without_partial_blocks(tmp_path: Path) -> None:
    trace = open_trace(written(tmp_path / "trace", MOONCAKE))
    assert (trace.name, trace.block_size, trace.sizes) == ("trace", 512, None)
    assert told(trace) == [(0.0, "", 1300, 5, [0, 1]), (20.0, "", 1024, 6, [0, 3])]
    assert told(trace) == told(trace)


def test_weka_streams_merge_and_start_spread_over_a_week(tmp_path: Path) -> None:
    trace = open_trace(written(tmp_path / "trace", WEKA))
    assert trace.block_size == 64
    assert told(trace) == [
        (0.0, "a", 200, 9, [1, 2, 3]),
        (302_401_500.0, "b", 64, 9, [1]),
        (400_000_000.0, "a", 330, 9, [1, 2, 4, 9, 10]),
    ]


def test_ragpulse_blocks_are_equal_where_the_same_parts_lie_at_the_same_places(tmp_path: Path) -> None:
    trace = open_trace(ragpulse(tmp_path))
    found = told(trace)
    assert [(time, length) for time, _, length, _, _ in found] == [(3000.0, 175), (9000.0, 237), (12000.0, 185)]
    short, long, other = (blocks for *_, blocks in found)
    assert (len(short), len(long), len(other)) == (2, 3, 2)
    assert short == long[:2]
    assert short[0] == other[0]
    assert short[1] != other[1]


def test_ragpulse_blocks_behind_different_ones_are_different(tmp_path: Path) -> None:
    folder = ragpulse(tmp_path)
    (folder / "0_trace.jsonl.gz").unlink()
    written(folder / "0_trace.jsonl", [pulse("1", [3], 150, system=5), pulse("2", [3], 150, system=6)])
    one, other = (set(blocks) for *_, blocks in told(open_trace(folder / "0_trace.jsonl")))
    assert (len(one), len(other), one & other) == (2, 2, set())


def test_a_recording_has_sizes_and_is_put_in_order(tmp_path: Path) -> None:
    trace = open_trace(written(tmp_path / "trace", RECORDING))
    assert trace.sizes == Sizes(192, 23040, "tiny")
    assert [(time, blocks) for time, _, _, _, blocks in told(trace)] == [(2.5, [6]), (7.5, [2**63 - 1, 5])]
    assert len({scope for _, scope, *_ in told(trace)}) == 2


def test_a_recordings_second_run_shares_nothing_with_its_first(tmp_path: Path) -> None:
    found = told(open_trace(written(tmp_path / "trace", RECORDING + RECORDING)))
    assert [time for time, *_ in found] == [2.5, 7.5, 10.0, 15.0]
    assert {scope for _, scope, *_ in found[:2]}.isdisjoint(scope for _, scope, *_ in found[2:])


@pytest.mark.parametrize("cut", [1, 20])
def test_a_recordings_torn_last_line_is_passed_over(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "trace"
    path.write_text(lines(RECORDING)[: -1 - cut])
    assert len(told(open_trace(path))) == 1


def test_a_torn_last_line_of_another_format_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_text(lines(MOONCAKE)[:-5])
    with pytest.raises(TraceError, match="line 2"):
        told(open_trace(path))


def test_gzip_by_content_whatever_the_name(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_bytes(gzip.compress(lines(MOONCAKE).encode()))
    assert len(told(open_trace(path))) == 2
    path.write_bytes(gzip.compress(lines(MOONCAKE).encode())[:-10])
    with pytest.raises(TraceError, match="compressed data end badly"):
        told(open_trace(path))


def test_a_format_can_be_named(tmp_path: Path) -> None:
    path = written(tmp_path / "trace", [{"hash_ids": 1, **WEKA[0]}])
    assert len(told(open_trace(path, "weka"))) == 2
    with pytest.raises(TraceError, match="no format 'csv'"):
        open_trace(path, "csv")


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([MOONCAKE[0], {**MOONCAKE[1], "hash_ids": [0]}], "line 2: .*does not name 2 blocks"),
        ([MOONCAKE[0], {**MOONCAKE[1], "hash_ids": [0, "x"]}], "line 2: .*whole numbers"),
        ([MOONCAKE[0], {"timestamp": 1}], "line 2: the field 'input_length' lacks"),
        ([MOONCAKE[0], {**MOONCAKE[1], "input_length": -1}], "line 2: .*input_length is -1"),
        ([WEKA[0], {"ns": "b", "requests": [{**WEKA[0]["requests"][1]}]}], "line 2: .*keep is 2, of 0 blocks"),
        ([{**WEKA[0], "requests": [{**WEKA[0]["requests"][0], "in": 640}]}], "line 1: .*640 tokens has 3 blocks"),
        ([{**WEKA[0], "requests": [{**WEKA[0]["requests"][0], "new": [[1, 2**40]]}]}], "line 1: .*at once"),
        ([{**WEKA[0], "block_size": 0}], "line 1: .*block_size is 0"),
        ([{**HEADER, "version": 2}], "has version 2"),
        ([HEADER, {**RECORDING[1], "blocks": [2**63]}, RECORDING[2]], "line 2: "),
        ([HEADER, RECORDING[1], {**HEADER, "block_size": 32}], "line 3: its blocks are not of 64 tokens"),
        ([{"prompt": "text"}], "no known format: its first line has prompt"),
        ([], "is empty"),
    ],
)
def test_damage_is_told_with_its_line(tmp_path: Path, records: list[dict[str, Any]], message: str) -> None:
    path = written(tmp_path / "trace", records)
    with pytest.raises(TraceError, match=message) as error:
        told(open_trace(path))
    assert error.value.hint


def test_a_line_that_is_no_json(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_text(lines(MOONCAKE) + "{half\n" + lines(MOONCAKE))
    with pytest.raises(TraceError, match=r"line 3: it is not JSON: \{half"):
        told(open_trace(path))


def test_parts_without_a_length(tmp_path: Path) -> None:
    folder = ragpulse(tmp_path)
    written(folder / "2_passages.jsonl", [])
    with pytest.raises(TraceError, match=r"line 1: .*passages_ids 2 has no length"):
        told(open_trace(folder))
    (folder / "4_user_input.jsonl").unlink()
    with pytest.raises(TraceError, match=r"needs 4_user_input.jsonl\(.gz\) beside it"):
        told(open_trace(folder))


def test_paths_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="there is no file"):
        open_trace(tmp_path / "missing")
    with pytest.raises(TraceError, match="is a folder"):
        open_trace(tmp_path)


def test_coarser_blocks_and_parts_of_a_trace(tmp_path: Path) -> None:
    trace = open_trace(written(tmp_path / "trace", WEKA))
    coarse = trace.coarse(2)
    assert (coarse.block_size, [blocks for *_, blocks in told(coarse)]) == (128, [[2], [], [2, 9]])
    assert trace.coarse(1) is trace
    assert told(trace.take(0.5, 1.0)) == told(trace)[1:]
    assert all(request.blocks.dtype == np.int64 for request in coarse)


def test_the_names_that_are_told_are_those_of_the_formats() -> None:
    assert tuple(FORMATS) == NAMES
