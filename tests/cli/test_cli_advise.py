"""`milepost advise`, on a trace so small that everything in it is known."""

import json
from pathlib import Path

import pytest
from traces import written

from milepost.cli.main import main


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return written(tmp_path / "trace.jsonl")


def asked(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    assert main(["advise", *args]) == 0
    told = capsys.readouterr()
    assert told.err == ""
    return told.out


def test_a_setting_and_what_it_gains(trace: Path, capsys: pytest.CaptureFixture[str]):
    told = asked(capsys, str(trace), "--memory", "10MB")
    assert told.startswith("trace.jsonl: 38 requests, 73,150 prompt tokens\nrecorded: 100 B a token, 6.4 kB a state\n")
    assert "Use the default setting: with 10 MB, 90 % of all prompt tokens are resumed.\n" in told
    assert "    milepost serve MODEL --kv-cache-memory-bytes 10MB\n" in told
    settings, memory = (part.splitlines() for part in told.split("\n\n")[2:])
    assert [line.split()[0] for line in settings[:2]] == ["setting", "default"]
    assert [line.split()[0] for line in memory] == ["memory", "5", "10", "20", "endless"]


def test_json_is_a_report_with_the_advice(trace: Path, capsys: pytest.CaptureFixture[str]):
    told = json.loads(asked(capsys, str(trace), "--memory", "1MB", "--json"))
    advice = told["advice"]
    assert told["format"] == "milepost-replay"
    assert (advice["budget_bytes"], advice["ceiling"]) == (10**6, told["ceiling"]["hit_rate"])
    assert [budget["bytes"] for budget in told["budgets"]] == [500_000, 10**6, 2 * 10**6]
    at = {(run["policy"], run["budget_bytes"]): run["hit_rate"] for run in told["runs"]}
    assert at[advice["policy"], 10**6] == advice["hit_rate"]
    assert {policy for policy, _ in at} >= {"default", "interval 0", "interval 512", "interval 2048", "interval 8192"}
    assert 0 < advice["feasible"] <= advice["bound"] <= advice["ceiling"] + 1e-9


def test_sizes_by_flags_by_a_shape_and_by_a_config(trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    def model(*args: str) -> tuple[str, int, int]:
        found = json.loads(asked(capsys, str(trace), "--memory", "1GB", "--json", *args))["model"]
        return found["name"], found["kv_bytes_per_token"], found["checkpoint_bytes"]

    assert model() == ("recorded", 100, 6400)
    assert model("--checkpoint-bytes", "0") == ("recorded", 100, 0)
    assert model("--kv-bytes-per-token", "1k", "--checkpoint-bytes", "2k") == ("recorded", 1000, 2000)
    assert model("--model", "qwen3.5-0.8b") == ("qwen3.5-0.8b", 12_288, 19_537_920)


def test_a_model_without_states_has_no_intervals(trace: Path, capsys: pytest.CaptureFixture[str]):
    told = asked(capsys, str(trace), "--memory", "1MB", "--checkpoint-bytes", "0")
    assert "interval" not in told
    assert "100 B a token\n" in told


def test_times_where_they_were_measured(trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    measured = tmp_path / "bench.json"
    measured.write_text('{"shape": "s", "name": "prefill 512", "value": 1000, "unit": "tokens/s"}\n')
    assert "prefill, mean" not in asked(capsys, str(trace), "--memory", "1MB")
    assert "prefill, mean" in asked(capsys, str(trace), "--memory", "1MB", "--cost", str(measured))


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["missing.jsonl", "--memory", "1GB"], "error: there is no file missing.jsonl\nhint: "),
        (["TRACE", "--memory", "much"], "error: "),
        (["TRACE"], "error: "),
        (["TRACE", "--memory", "1kB"], "error: the cache has"),
        (["TRACE", "--memory", "1GB", "--format", "x"], "error: there is no format 'x'"),
        (["TRACE", "--memory", "1GB", "--model", "no.json"], "error: no.json cannot be read: No such file"),
        (
            ["TRACE", "--memory", "1GB", "--kv-bytes-per-token", "0", "--checkpoint-bytes", "0"],
            "error: a model without",
        ),
        (["TRACE", "--memory", "1GB", "--cost", "no.json"], "error: cannot read no.json"),
    ],
)
def test_what_cannot_be(trace: Path, args: list[str], told: str, capsys: pytest.CaptureFixture[str]):
    assert main(["advise", *(str(trace) if arg == "TRACE" else arg for arg in args)]) == 2
    found = capsys.readouterr().err
    assert found.startswith(told)
    assert len(found.splitlines()) == 2
    assert "\nhint: " in found
