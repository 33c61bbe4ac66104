"""A recording of what requests ask of the prefix cache: lengths, times, and keyed hashes of their blocks, never text.

    engine's thread    ended(state) --> a line waits, nothing computed yet
    recorder's thread                   --> tokens are hashed, the line is written at once

The key is drawn for each file and never written: the same text has other ids in another file, and nobody who has the
file can try out texts. The format is described in docs/policy-lab.md.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from hashlib import blake2b
from typing import Any

from prometheus_client import CollectorRegistry, Counter

from milepost.cache.keys import block_keys, pack, root_key
from milepost.cache.snapshot import CacheSnapshot
from milepost.engine.record_file import FORMAT, VERSION, Line, RecordFile
from milepost.engine.request_state import RequestState
from milepost.errors import ConfigError, frames_of
from milepost.specs import CHUNK

logger = logging.getLogger(__name__)

ID_BYTES = 8
MAX_SCOPES = 65_536
"""More of them share the last number. Their ids differ all the same: a chain begins with its scope."""

MAX_WAITING_TOKENS = 4_000_000
"""Of requests that wait to be written, where a disk hangs; what is more is not recorded."""


@dataclass(frozen=True, slots=True)
class Ended:
    """A request that has begun and ended, as the engine's thread leaves it. `tokens` are its prompt and the answer of
    its first sample; times in seconds of the engine's clock."""

    tokens: Sequence[int]
    num_prompt_tokens: int
    num_output_tokens: int
    num_cached_tokens: int
    scope: str
    arrival_time: float
    start_time: float
    finish_reason: str
    miss: str | None
    places: tuple[int, ...]

    @classmethod
    def of(cls, state: RequestState) -> Ended | None:
        """None for one that ended before it began: it asked nothing of the cache."""
        seqs = [sample.seq for sample in state.samples]
        first = seqs[0]
        if first.first_scheduled_time is None:
            return None
        return cls(
            tokens=first.tokens,
            num_prompt_tokens=first.num_prompt_tokens,
            num_output_tokens=sum(seq.num_output_tokens for seq in seqs),
            num_cached_tokens=first.num_cached_tokens,
            scope=first.cache_salt,
            arrival_time=first.arrival_time,
            start_time=first.first_scheduled_time,
            finish_reason=first.finish_reason or "abort",
            miss=first.miss.reason if first.miss else None,
            places=(*first.boundaries, *first.breakpoints),
        )


class Recorder:
    """Writes a section of a recording: its header now, then each request that ends. Only `ended` is called by the
    engine's thread; where lines cannot be written any more, serving goes on and they are counted."""

    def __init__(
        self, file: RecordFile, header: Line, registry: CollectorRegistry, model_name: str, clock: Callable[[], float]
    ) -> None:
        """`ConfigError` if not even the header can be written."""
        self._file = file
        self._keys = BlockHashes(os.urandom(32))
        self._start = clock()
        self._written = _counter("recorded_requests", "Requests written to --record's file.", registry, model_name)
        self._lost = _counter("unrecorded_requests", "Requests that could not be written there.", registry, model_name)
        self._fails = False
        self._waiting: queue.SimpleQueue[Ended | None] = queue.SimpleQueue()
        self._num_taken = self._num_done = 0  # tokens; each is written by one thread alone
        try:
            file.append(header)
        except OSError as error:
            reason = error.strerror
            raise ConfigError(f"--record cannot write to {file.path}: {reason}", "make room, or leave it out") from None
        self._thread = threading.Thread(target=self._run, name="milepost-record", daemon=True)
        self._thread.start()

    def ended(self, state: RequestState) -> None:
        """`state` has ended, and nobody changes it any more."""
        ended = Ended.of(state)
        if ended is None:
            return
        num_waiting = self._num_taken - self._num_done
        if num_waiting and num_waiting + len(ended.tokens) > MAX_WAITING_TOKENS:
            self._lost.inc()
            return
        self._num_taken += len(ended.tokens)
        self._waiting.put(ended)

    def close(self) -> None:
        """Writes what waits, for ten seconds at most."""
        self._waiting.put(None)
        self._thread.join(timeout=10)

    def _run(self) -> None:
        while (ended := self._waiting.get()) is not None:
            self._write(ended)
            self._num_done += len(ended.tokens)
        self._file.close()

    def _write(self, ended: Ended) -> None:
        try:
            self._file.append(line_of(ended, self._keys, self._start))
        except Exception as error:
            self._lost.inc()
            if not self._fails:
                reason = error.strerror if isinstance(error, OSError) else frames_of(error)
                logger.warning("requests are not recorded: %s (hint: look at %s)", reason, self._file.path)
            self._fails = True
            return
        self._written.inc()
        if self._fails:
            logger.warning("requests are recorded again")
        self._fails = False


class BlockHashes:
    """Names of full blocks of 64 tokens, each chained to the one before it and the first to its scope, under a key."""

    def __init__(self, key: bytes) -> None:
        self._hash = partial(_keyed, key)
        self._numbers: dict[str, int] = {}

    def scope(self, name: str) -> int:
        number = self._numbers.get(name, min(len(self._numbers), MAX_SCOPES - 1))
        if number < MAX_SCOPES - 1:
            self._numbers[name] = number
        return number

    def blocks(self, scope: str, tokens: Sequence[int]) -> list[int]:
        """Below 2^63, which every reader's integers hold."""
        packed = bytearray()
        pack(packed, tokens)
        keys = block_keys(packed, root_key(b"", scope, self._hash), self._hash, CHUNK)
        return [int.from_bytes(key) >> 1 for key in keys]


def header_of(model_name: str, cache: CacheSnapshot, now: datetime) -> dict[str, Any]:
    """`now`: with its time zone."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "block_size": CHUNK,
        "model": model_name.rstrip("/").rpartition("/")[2],
        "kv_bytes_per_token": cache.token_bytes,
        "checkpoint_bytes": cache.checkpoint_bytes,
        "cache_bytes": cache.limit_bytes,
        "retention_interval": cache.interval,
        "started": now.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
    }


def line_of(ended: Ended, keys: BlockHashes, start: float) -> dict[str, Any]:
    """`start`: of the section, in seconds of the engine's clock."""
    ids = keys.blocks(ended.scope, ended.tokens)
    num_blocks = ended.num_prompt_tokens // CHUNK
    places = sorted({place // CHUNK for place in ended.places} - {0})
    return {
        "t_ms": round((ended.start_time - start) * 1000, 1),
        "queued_ms": round((ended.start_time - ended.arrival_time) * 1000, 1),
        "scope": keys.scope(ended.scope),
        "in": ended.num_prompt_tokens,
        "out": ended.num_output_tokens,
        "hit": ended.num_cached_tokens,
        "end": ended.finish_reason,
        "miss": ended.miss,
        "boundaries": [place for place in places if place <= num_blocks],
        "blocks": ids[:num_blocks],
        "answer": ids[num_blocks:],
    }


def _keyed(key: bytes, data: bytes) -> bytes:
    return blake2b(data, digest_size=ID_BYTES, key=key).digest()


def _counter(name: str, about: str, registry: CollectorRegistry, model_name: str) -> Counter:
    return Counter(f"milepost:{name}", about, ["model_name"], registry=registry).labels(model_name)
