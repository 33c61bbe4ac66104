"""Tables of runs: the last row that counts, the fastest peer, and cells that are empty."""

from typing import Any

from bench.measures import Measure
from bench.report import report
from bench.table import as_json
from bench.turns import Row, Values

MEASURE = Measure("prefill 512", "prefill", {"tokens": 512})


def line(ours: float, void: tuple[str, ...] = ()) -> dict[str, Any]:
    peers = (Values("vllm", (100.0,)), Values("llama", problem="no file"))
    return as_json("lfm2-350m", Row(MEASURE, Values("milepost", (ours,)), peers, 400.0, void))


def test_the_last_row_that_is_not_void_counts() -> None:
    (table,) = report([line(110), line(120), line(500, ("vllm",))])
    assert table.splitlines() == [
        "| lfm2-350m | milepost | vllm | llama | times as fast as the fastest | share of the limit |",
        "| --- | --- | --- | --- | --- | --- |",
        "| prefill 512, tok/s | 120.0 | 100.0 | - | 1.20 (vllm) | 0.30 |",
    ]


def test_a_void_row_says_so_where_there_is_no_other() -> None:
    (table,) = report([line(500, ("vllm",))])
    assert "prefill 512, tok/s (void: vllm below its usual rate) | 500.0" in table


def test_other_findings_follow() -> None:
    _, facts = report([line(1), {"shape": "lfm2-350m", "share_outside_kernels": 0.0712345}])
    assert facts == "- lfm2-350m: share_outside_kernels 0.07123"
