"""`milepost top` against a server."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from fake_engine import FakeEngine, serving, state_of

from milepost.cli.main import main
from milepost.engine.metrics import Metrics


@pytest.fixture
def engine() -> FakeEngine:
    engine, metrics = FakeEngine(), Metrics("fake")
    metrics.running.set(2)
    engine.metrics_text = metrics.text  # type: ignore[method-assign]
    return engine


@pytest.fixture
def url(engine: FakeEngine) -> Iterator[str]:
    with serving(state_of(engine)) as url:
        yield url


def test_once(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "--once", "--interval", "0.1", "--url", f"{url}/v1"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[0] for line in shown] == [
        "requests",
        "tokens/s",
        "TTFT",
        "per token",
        "reused",
        "cache",
        "states",
    ]
    assert shown[0] == "requests   2 running, 0 waiting; ended: none"
    assert "60 % of prompt tokens (60 of 100)" in shown[4]
    assert "68 B of 1000 B, 7 % (48 B kv, 20 B state, 30 B pinned)" in shown[5]


def test_ctrl_c_ends_it(
    engine: FakeEngine, url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    naps: list[float] = []

    def nap(seconds: float) -> None:
        naps.append(seconds)
        if len(naps) == 4:
            raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", nap)
    assert main(["top", "--url", url, "--interval", "3"]) == 0
    said = capsys.readouterr()
    assert naps == [3.0] * 4
    assert f"milepost top, {url}" in said.out
    assert "2 running, 0 waiting" in said.out
    assert said.err == ""


def test_keys(monkeypatch: pytest.MonkeyPatch, engine: FakeEngine, capsys: pytest.CaptureFixture[str]) -> None:
    with serving(state_of(engine, api_keys=("one", "two"))) as url:
        assert main(["top", "--once", "--url", url]) == 2
        assert capsys.readouterr().err.endswith("hint: give --api-key\n")
        monkeypatch.setenv("MILEPOST_API_KEY", "one two")
        assert main(["top", "--once", "--interval", "0.1", "--url", url]) == 0


def test_no_server(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "--url", "http://127.0.0.1:1"]) == 2
    error, hint = capsys.readouterr().err.splitlines()
    assert error.startswith("error: no Milepost server answers at http://127.0.0.1:1: ")
    assert hint == "hint: start one with milepost serve"


def test_a_server_with_other_metrics(engine: FakeEngine, url: str, capsys: pytest.CaptureFixture[str]) -> None:
    engine.metrics_text = lambda: b"up 1\n"  # type: ignore[method-assign]
    assert main(["top", "--once", "--url", url]) == 2
    assert "/metrics has not the names of ours" in capsys.readouterr().err


def test_a_server_that_goes_away_is_told(
    engine: FakeEngine, url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def nap(seconds: float) -> None:
        engine.metrics_text = lambda: b""  # type: ignore[method-assign]

    monkeypatch.setattr(time, "sleep", nap)
    assert main(["top", "--url", url]) == 2
    assert capsys.readouterr().err.startswith("error: no Milepost server answers")
