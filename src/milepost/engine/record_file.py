"""The file that `milepost serve --record` writes: JSON lines, each written whole and at once, readable by its owner."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import stat
from collections.abc import Mapping
from typing import Any

from milepost.errors import ConfigError

FORMAT = "milepost-trace"
VERSION = 1

Line = Mapping[str, Any]


class RecordFile:
    """A new file, or one of our own, to which a section is added: a header, then requests.

    Whatever happens to this process, a reader finds whole lines and at most one torn one, the last. No line is synced
    to the disk: those of the last seconds may be lost when the machine itself stops.
    """

    def __init__(self, path: str) -> None:
        """Opens and locks it; `ConfigError` for one that cannot be written, is not ours, or is being written."""
        self.path = path
        flags = os.O_RDWR | os.O_CREAT | os.O_NONBLOCK  # a pipe would wait for its reader
        try:
            self._file = os.open(path, flags, 0o600)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise ConfigError(
                f"--record cannot write to {path}: {reason}", "give a file in a folder that this user may write to"
            ) from None
        try:
            self._take()
            self._end = self._find_end()
        except BaseException:
            os.close(self._file)
            raise

    def append(self, line: Line) -> None:
        """Writes it at once; OSError, and the file as it was, if that cannot be."""
        data = json.dumps(line, separators=(",", ":")).encode() + b"\n"
        try:
            written = 0
            while written < len(data):
                written += os.pwrite(self._file, data[written:], self._end + written)
        except OSError:
            with contextlib.suppress(OSError):  # what was written of it would spoil the next line
                os.ftruncate(self._file, self._end)
            raise
        self._end += len(data)

    def close(self) -> None:
        os.close(self._file)

    def _take(self) -> None:
        if not stat.S_ISREG(os.fstat(self._file).st_mode):
            raise ConfigError(f"--record cannot write to {self.path}: it is no regular file", "give a file's name")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ConfigError(f"{self.path} is being recorded to by another server", "give each its own file") from None
        try:
            os.fchmod(self._file, 0o600)
        except OSError as error:
            raise ConfigError(
                f"--record cannot keep {self.path} from other users: {error.strerror}", "give a new file's name"
            ) from None

    def _find_end(self) -> int:
        """Behind the last whole line: a torn one, of a server that died while it wrote, is written over."""
        size = os.fstat(self._file).st_size
        if not size:
            return 0
        if not _is_header(os.pread(self._file, 4096, 0)):
            raise ConfigError(f"{self.path} is there already, and no recording", "give a new file's name")
        end = size
        while end:
            start = max(0, end - 65536)
            newline = os.pread(self._file, end - start, start).rfind(b"\n")
            if newline >= 0:
                end = start + newline + 1
                break
            end = start
        os.ftruncate(self._file, end)
        return end


def _is_header(data: bytes) -> bool:
    try:
        found = json.loads(data.partition(b"\n")[0])
    except ValueError:
        return False
    return isinstance(found, dict) and found.get("format") == FORMAT
