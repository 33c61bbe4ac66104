"""`milepost replay`, on a trace so small that everything in it is known."""

import json
from pathlib import Path

import pytest
from traces import written

from milepost.cache.policies.registry import DEFAULT, POLICIES
from milepost.cli.main import main


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return written(tmp_path / "trace.jsonl")


def asked(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    assert main(["replay", *args, "--jobs", "1"]) == 0
    told = capsys.readouterr()
    assert told.err == ""
    return told.out


def test_a_table_of_hit_rates_between_the_limits(trace: Path, capsys: pytest.CaptureFixture[str]):
    told = asked(capsys, str(trace), "--memory", "1MB", "--memory", "10MB", "--policy", DEFAULT)
    rates, details = (part.splitlines() for part in told.split("\n\n")[1:])
    assert [line.split("  ")[0] for line in rates] == [
        "hit rate",
        DEFAULT,
        "with foresight",
        "bound of any policy",
        "endless memory",
    ]
    assert rates[0].split() == ["hit", "rate", "1", "MB", "10", "MB"]
    assert rates[1].split()[-2:] == rates[4].split()[-2:] == ["90", "%"]
    assert details[0] == f"{DEFAULT}:"
    assert [line.split()[0] for line in details[1:]] == ["memory", "1", "10"]


def test_json_and_page_are_the_same_report(trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    page = tmp_path / "report.html"
    told = json.loads(asked(capsys, str(trace), "--memory", "10MB", "--html", str(page), "--json"))
    flags = {DEFAULT: "", "returns": "--prefix-cache-policy returns"}
    assert {run["policy"]: run["flags"] for run in told["runs"]} == dict.fromkeys(POLICIES) | flags
    assert told["advice"]["policy"] == DEFAULT
    shown = page.read_text().partition('id="report">')[2].partition("</script>")[0]
    assert json.loads(shown) == told


def test_intervals_of_the_engines_policy(trace: Path, capsys: pytest.CaptureFixture[str]):
    args = [str(trace), "--policy", DEFAULT, "--prefix-cache-retention-interval", "0", "--memory", "1MB", "--json"]
    runs = {run["policy"]: run["flags"] for run in json.loads(asked(capsys, *args))["runs"]}
    assert runs == {DEFAULT: "", f"{DEFAULT}, interval 0": "--prefix-cache-retention-interval 0"}


def test_budgets_up_to_what_is_ever_needed(trace: Path, capsys: pytest.CaptureFixture[str]):
    told = json.loads(asked(capsys, str(trace), "--policy", DEFAULT, "--no-bounds", "--json"))
    sizes = [budget["bytes"] for budget in told["budgets"]]
    needed = (2 * 57 * 64 + 38 * 5) * 100 + 38 * 6400
    assert sizes == [needed >> place for place in (5, 4, 3, 2, 1, 0)]
    assert all(budget["upper_bound"] is None for budget in told["budgets"])


def test_blocks_can_be_coarser(trace: Path, capsys: pytest.CaptureFixture[str]):
    args = [str(trace), "--policy", DEFAULT, "--memory", "10MB", "--json"]
    fine, coarse = (json.loads(asked(capsys, *args, *more)) for more in ([], ["--block-size", "256"]))
    assert (fine["trace"]["block_size"], coarse["trace"]["block_size"]) == (64, 256)
    assert 0 < coarse["ceiling"]["hit_rate"] < fine["ceiling"]["hit_rate"]


def test_several_at_once_are_the_same(trace: Path, capsys: pytest.CaptureFixture[str]):
    args = ["replay", str(trace), "--policy", DEFAULT, "--memory", "1MB", "--memory", "2MB", "--json"]
    told = []
    for jobs in ("1", "2"):
        assert main([*args, "--jobs", jobs]) == 0
        told.append(json.loads(capsys.readouterr().out))
    assert told[0] == told[1]
    assert [run["budget_bytes"] for run in told[1]["runs"]] == [10**6, 2 * 10**6]


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["missing.jsonl"], "error: there is no file missing.jsonl\nhint: "),
        (["TRACE", "--policy", "best"], "error: --policy cannot be 'best'\nhint: one of: "),
        (["TRACE", "--memory", "much"], "error: "),
        (["TRACE", "--memory", "1kB"], "error: the cache has 1000 bytes"),
        (["TRACE", "--block-size", "100"], "error: --block-size must be a multiple of the trace's 64, got 100"),
        (["TRACE", "--memory", "1MB", "--html", "/no/such/folder/page"], "error: --html cannot write to /no/such"),
    ],
)
def test_what_cannot_be(trace: Path, args: list[str], told: str, capsys: pytest.CaptureFixture[str]):
    command = ["replay", *(str(trace) if arg == "TRACE" else arg for arg in args), "--jobs", "1"]
    assert main(command) == 2
    found = capsys.readouterr().err
    assert found.startswith(told)
    assert "\nhint: " in found
