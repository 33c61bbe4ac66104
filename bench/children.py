"""The engines of a comparison: each a process of its own, and only the one that is measured may run."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

ROOT = Path(__file__).resolve().parent.parent
THREAD_VARIABLES = ("OMP_", "KMP_", "GOMP_", "MKL_", "OPENBLAS_")
"""What the shell says of threads is not passed on: each engine runs as it does by itself."""


class ChildError(Exception):
    """An engine could not start, ended, or did not answer in time."""


class Child:
    """An engine that answers one request at a time. Between requests it is suspended, with all that it started.

    start_seconds: from the start of the process to the first token that it computed.
    """

    def __init__(self, name: str, command: Sequence[str], env: Mapping[str, str], log: Path, timeout_s: float) -> None:
        """Starts it and waits until it is ready; `log` gets all that it prints. ChildError if it does not come up."""
        self.name, self.log, self.timeout_s = name, log, timeout_s
        log.parent.mkdir(parents=True, exist_ok=True)
        kept = {key: value for key, value in os.environ.items() if not key.startswith(THREAD_VARIABLES)}
        begun = time.perf_counter()
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=ROOT,
                env={**kept, **env},
                process_group=0,
            )
        try:
            told = self._read()
        except BaseException:  # also where the user gave up
            self.close()
            raise
        self.start_seconds = time.perf_counter() - begun
        if "ready" not in told:
            self.close()
            raise ChildError(f"{name}: {told.get('error')} (see {log})")
        self.about: dict[str, Any] = told["ready"]
        self._signal(signal.SIGSTOP)

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, op: str, **arguments: Any) -> dict[str, Any]:
        """Its answer; it runs from now until it has answered. ChildError if it ends or takes too long."""
        self._signal(signal.SIGCONT)
        try:
            stdin = self._pipe(self._process.stdin)
            stdin.write(json.dumps({"op": op, **arguments}).encode() + b"\n")
            stdin.flush()
            return self._read()
        except BrokenPipeError as error:
            raise ChildError(f"{self.name} has ended (see {self.log})") from error
        finally:
            self._signal(signal.SIGSTOP)

    def close(self) -> None:
        """Ends it and all that it started."""
        self._signal(signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(BrokenPipeError):  # what it did not read any more
                self._pipe(pipe).close()

    def _read(self) -> dict[str, Any]:
        stdout, deadline, line = self._pipe(self._process.stdout), time.monotonic() + self.timeout_s, b""
        while not line.endswith(b"\n"):
            ready, _, _ = select.select([stdout], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise ChildError(f"{self.name} did not answer in {self.timeout_s:.0f} s (see {self.log})")
            piece = os.read(stdout.fileno(), 1 << 16)
            if not piece:
                raise ChildError(f"{self.name} has ended (see {self.log})")
            line += piece
        return json.loads(line)

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):  # it has ended: whoever reads from it is told
            os.killpg(self._process.pid, number)

    @staticmethod
    def _pipe(pipe: Any) -> BinaryIO:
        assert pipe is not None
        return pipe
