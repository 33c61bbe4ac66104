import threading

import pytest

from milepost.cli.progress import loading_bar


def test_nothing_is_written_where_no_terminal_is(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    with loading_bar() as report:
        report(1, 2)
        report(2, 0)
    told = capsys.readouterr()
    assert (told.out, told.err) == ("", "")


def test_a_terminal_gets_a_bar(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TTY_INTERACTIVE", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    with loading_bar() as report:
        thread = threading.Thread(target=report, args=(3_000_000, 6_000_000))
        thread.start()
        thread.join()
    told = capsys.readouterr()
    assert told.out == ""
    assert "Loading" in told.err
    assert "3.0/6.0 MB" in told.err
