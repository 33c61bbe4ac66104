"""An engine's process: only the one that is asked runs, and what goes wrong in it is told."""

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from bench.children import Child, ChildError

FAKE = Path(__file__).with_name("fake_peer.py")
Start = Callable[..., Child]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    children: list[Child] = []

    def started(option: str = "well=1", timeout_s: float = 60) -> Child:
        command = [sys.executable, str(FAKE), "--model", "none", "--set", option]
        env = {"PYTHONPATH": str(Path(__file__).parents[2])}
        children.append(Child("fake", command, env, tmp_path / "logs" / "fake.log", timeout_s))
        return children[-1]

    yield started
    for child in children:
        child.close()


def is_stopped(pid: int) -> bool:
    """A signal takes effect a moment after it is sent."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if psutil.Process(pid).status() == psutil.STATUS_STOPPED:
            return True
        time.sleep(0.01)
    return False


def test_it_answers_and_what_it_prints_goes_to_the_log(start: Start) -> None:
    child = start()
    assert child.about == {"version": "1"}
    assert child.start_seconds > 0
    assert child.ask("prefill", tokens=7) == {"seconds": 0.5, "work": 7}
    assert child.log.read_text().count("engines print") == 2  # the first token of all was computed before it was ready


def test_between_requests_it_and_what_it_started_are_suspended(start: Start) -> None:
    child = start("helper=1")
    assert is_stopped(child.pid)
    assert is_stopped(child.about["helper"])
    child.ask("prefill", tokens=1)
    assert is_stopped(child.pid)


def test_closing_ends_what_it_started_too(start: Start) -> None:
    child = start("helper=1")
    helper = psutil.Process(child.about["helper"])
    child.close()
    _, alive = psutil.wait_procs([helper], timeout=30)
    assert not alive or helper.status() == psutil.STATUS_ZOMBIE


def test_an_op_that_fails_or_is_unknown_is_an_answer(start: Start) -> None:
    child = start()
    assert child.ask("decode", batch=1, prompt=1, tokens=1) == {"error": "ValueError: no decode today"}
    assert child.ask("gemm") == {"error": "it has no such thing"}
    assert child.ask("__init__") == {"error": "it has no such thing"}
    assert child.ask("prefill", tokens=2)["work"] == 2


def test_one_that_cannot_load_says_why(start: Start) -> None:
    with pytest.raises(ChildError, match="RuntimeError: no weights"):
        start("broken=1")


def test_one_that_ends_is_told(start: Start) -> None:
    child = start()
    for _ in range(2):
        with pytest.raises(ChildError, match="has ended"):
            child.ask("burst", requests=1, prompt=1, answer=1)


def test_one_that_does_not_answer_is_given_up(start: Start) -> None:
    child = start()
    child.timeout_s = 0.1
    with pytest.raises(ChildError, match="did not answer"):
        child.ask("reuse", tokens=1, shared=1)


def test_the_shells_words_on_threads_are_not_passed_on(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")
    monkeypatch.setenv("UNTOUCHED", "1")
    env = psutil.Process(start().pid).environ()
    assert "OMP_WAIT_POLICY" not in env
    assert env["UNTOUCHED"] == "1"
