"""A whole run: engines start, take turns, and rows, facts and the file of usual rates come of it."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from bench.children import Child
from bench.engines import OURS
from bench.machine import Machine, Speed, busy_share
from bench.suites import Context
from bench.table import as_json, as_table
from rich.console import Console

from bench import compare, suites

FAKE = Path(__file__).with_name("fake_peer.py")


@dataclass(frozen=True)
class FakeContext(Context):
    """All engines are the fake; the one called llama cannot load."""

    def start(self, name: str, prefix_caching: bool) -> Child:
        option = "broken=1" if name == "llama" else "well=1"
        env = {"PYTHONPATH": str(Path(__file__).parents[2])}
        command = [sys.executable, str(FAKE), "--model", "none", "--set", option]
        return Child(name, command, env, self.root / "logs" / f"{name}.log", self.timeout_s)


@pytest.fixture
def context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeContext:
    def sample(machine: Machine) -> Speed:
        machine._samples.append(Speed(4e10, 1e12))
        return machine._samples[-1]

    monkeypatch.setenv("CC", "no-such-compiler")
    monkeypatch.setattr(Machine, "sample", sample)
    return FakeContext("lfm2-350m", tmp_path, ["vllm", "llama"], 2, 2, 60, tmp_path / "usual.json")


def test_a_run_of_turns(context: FakeContext) -> None:
    rows, facts = suites.throughput(context)
    prefill, decode = rows[1], rows[3]
    assert prefill.measure.name == "prefill 2048"
    assert prefill.ours.values == (4096, 4096)
    assert prefill.ratios() == {"vllm": 1}
    assert "no weights" in prefill.peers[1].problem
    assert prefill.limit is not None
    assert decode.ours.problem == "ValueError: no decode today"
    assert decode.ratios() == {}
    assert {"engine": OURS, "version": "1"} in facts
    assert {"read_bytes_per_s": 4e10, "dot_ops_per_s": 1e12} in facts
    assert json.loads(context.usual.read_text())["lfm2-350m"]["prefill 2048"] == {"vllm": 4096}
    told = as_json("lfm2-350m", prefill)
    assert told["share_of_limit"] == pytest.approx(4096 / prefill.limit)
    assert json.loads(json.dumps(told))["engines"]["vllm"]["median"] == 4096
    console = Console(width=250, record=True)
    console.print(as_table("a run", rows))
    assert "1.00*" in console.export_text()


def test_a_row_is_void_where_a_peer_was_faster_before(context: FakeContext) -> None:
    context.usual.write_text(json.dumps({"lfm2-350m": {"prefill 512": {"vllm": 5000}, "prefill 2048": {"vllm": 4100}}}))
    rows, _ = suites.throughput(context)
    assert [row.void for row in rows[:2]] == [("vllm",), ()]


def test_small_sizes_leave_no_trace(context: FakeContext) -> None:
    small = FakeContext(**{**vars(context), "divide": 64})
    rows, _ = suites.throughput(small)
    assert rows[0].measure.arguments == {"tokens": 8}
    assert not context.usual.exists()


def test_starts_are_timed_anew_each_time(context: FakeContext) -> None:
    (row,), _ = suites.start(context)
    assert len(row.ours.values) == 2
    assert len(row.peers[0].values) == 2
    assert "no weights" in row.peers[1].problem


def test_the_command_line_writes_a_line_for_each_row(
    context: FakeContext, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = context.root / "out.json"
    arguments = ["lfm2-350m", "--root", str(context.root), "--peers", "vllm", "--json", str(out), "--repeats", "1"]
    asked = compare.read([*arguments, "--suites", "throughput"])
    assert asked.context.peers == ["vllm"]
    fake = FakeContext(**vars(asked.context))
    monkeypatch.setattr(compare, "read", lambda _: compare.Asked(fake, asked.suites, asked.json_file))
    monkeypatch.setattr(compare, "busy_share", lambda: 0.5)
    assert compare.main() == 0
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [line["measure"] for line in lines if "measure" in line][:2] == ["prefill 512", "prefill 2048"]
    told = capsys.readouterr()
    assert "no decode today" in told.out
    assert "others use 50% of the processors" in told.err


@pytest.mark.parametrize("wrong", [["--peers", "none"], ["--suites", "none"]])
def test_unknown_names_are_refused(wrong: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        compare.read(["lfm2-350m", "--root", str(tmp_path), *wrong])
    assert "'none': one of" in capsys.readouterr().err


def test_the_share_of_time_that_others_use(tmp_path: Path) -> None:
    stat = tmp_path / "stat"
    stat.write_text("cpu 10 0 10 80 0 0 0 0 0 0\ncpu0 1 1 1 1\n")
    assert busy_share(0, stat) == 0
    assert 0 <= busy_share(0.05) <= 1
