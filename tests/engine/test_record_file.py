"""The recording's file: whose it is, what a crash, a full disk or another server does to it."""

import errno
import json
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from milepost.engine.record_file import RecordFile
from milepost.errors import ConfigError

HEADER = {"format": "milepost-trace", "version": 1}


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def recorded(path: Path, *added: dict[str, object]) -> Path:
    file = RecordFile(str(path))
    for line in added:
        file.append(line)
    file.close()
    return path


def test_lines_are_there_at_once_and_for_the_owner_alone(tmp_path: Path):
    path = tmp_path / "trace"
    file = RecordFile(str(path))
    file.append(HEADER)
    assert lines(path) == [HEADER], "before it is closed"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    file.close()


def test_an_earlier_recording_goes_on(tmp_path: Path):
    path = recorded(tmp_path / "trace", HEADER, {"t": 1})
    path.chmod(0o644)
    recorded(path, HEADER, {"t": 2})
    assert lines(path) == [HEADER, {"t": 1}, HEADER, {"t": 2}]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("torn", ['{"t": 2', "x" * 200_000])
def test_the_torn_line_of_a_crash_is_written_over(tmp_path: Path, torn: str):
    path = recorded(tmp_path / "trace", HEADER, {"t": 1})
    with path.open("a") as file:
        file.write(torn)
    recorded(path, HEADER)
    assert lines(path) == [HEADER, {"t": 1}, HEADER]


def foreign(path: Path) -> None:
    path.write_text('{"format": "another"}\n')


def folder(path: Path) -> None:
    path.mkdir()


def pipe(path: Path) -> None:
    os.mkfifo(path)


def nowhere(path: Path) -> None:
    path.symlink_to(path.parent / "missing" / "trace")


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (foreign, "is there already, and no recording"),
        (folder, "Is a directory"),
        (pipe, "no regular file"),
        (nowhere, "No such file or directory"),
    ],
)
def test_what_cannot_be_recorded_to(tmp_path: Path, make: Callable[[Path], None], told: str):
    make(tmp_path / "trace")
    with pytest.raises(ConfigError, match=told) as caught:
        RecordFile(str(tmp_path / "trace"))
    assert caught.value.hint
    if make is foreign:
        assert (tmp_path / "trace").read_text() == '{"format": "another"}\n'


def test_two_servers_do_not_share_one(tmp_path: Path):
    file = RecordFile(str(tmp_path / "trace"))
    with pytest.raises(ConfigError, match="being recorded to by another server"):
        RecordFile(str(tmp_path / "trace"))
    file.close()
    RecordFile(str(tmp_path / "trace")).close()


def test_a_line_that_does_not_fit_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file = RecordFile(str(tmp_path / "trace"))
    file.append(HEADER)
    write, room = os.pwrite, [3]

    def full(to: int, data: bytes, offset: int) -> int:
        if not room:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(to, data[: room.pop()], offset)

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="No space left"):
        file.append({"t": 1})
    monkeypatch.undo()
    assert lines(tmp_path / "trace") == [HEADER]
    file.append({"t": 2})
    file.close()
    assert lines(tmp_path / "trace") == [HEADER, {"t": 2}]
