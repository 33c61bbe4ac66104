"""Replays a trace through the engine's own prefix cache."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from milepost.cache.memory import IntegrityError
from milepost.cache.policies.policy import Build
from milepost.cache.policies.registry import DEFAULT, POLICIES
from milepost.cache.prefix_cache import PrefixCache
from milepost.request import Sequence
from milepost.sim.play import Scale, playable
from milepost.sim.result import Counts, KindOfBytes, Requests, Result
from milepost.sim.sizes import Sizes
from milepost.sim.trace import Trace, TraceRequest
from milepost.specs import BLOCK_SIZE, CHUNK

STEP_TOKENS = 2048
"""Rows of a step, as the engine's `max_num_batched_tokens`."""

NUM_SAMPLES = 240

Progress = Callable[[int], None]
"""Told how many requests have been played."""

Answer = Callable[[Sequence], None]
"""Lengthens a sequence whose prompt is computed by what is computed of its answer, if the trace knows that."""

Serve = Callable[[PrefixCache, Iterable[Sequence], Answer], Iterable[Sequence]]
"""Admits, computes and releases sequences, each to its last token, then to that of its answer; yields them as they end.
Each then has the tokens that it resumed in `num_cached_tokens`."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What a replay is to try. `interval`: see `Retention`, in the trace's tokens. `name`: what the report calls it."""

    name: str = DEFAULT
    build: Build = POLICIES[DEFAULT]
    interval: int | None = None


def look(trace: Trace, *, states: bool = True) -> Requests:
    """One walk through a trace: what it asks for, and what a cache without end would give. `states`: only whole blocks
    can be resumed, not each BLOCK_SIZE-th part of one."""
    trace = playable(trace)
    unit = trace.block_size if states else trace.block_size * BLOCK_SIZE // CHUNK
    seen: dict[str, set[int]] = {}
    rows: list[tuple[float, int, int, int]] = []
    for request in trace:
        known, blocks = seen.setdefault(request.scope, set()), request.blocks.tolist()
        low, high = 0, len(blocks)
        while low < high:  # ids are chained: those before a known one are known
            middle = (low + high) // 2
            low, high = (middle + 1, high) if blocks[middle] in known else (low, middle)
        known.update(blocks[low:])
        known.update(request.answer.tolist())
        limit = max(request.input_length - 1, 0) // unit * unit
        rows.append((request.time_ms, request.input_length, request.output_length, min(low * trace.block_size, limit)))
    times, *counts = zip(*rows, strict=True) if rows else ((), (), (), ())
    return Requests(np.array(times, np.float64), *(np.array(count, np.int64) for count in counts))


def replay(
    trace: Trace,
    setting: Setting,
    sizes: Sizes,
    limit_bytes: int,
    *,
    requests: Requests | None = None,
    step_tokens: int = STEP_TOKENS,
    serve: Serve | None = None,
    num_seqs: int = 1,
    progress: Progress | None = None,
) -> Result:
    """`trace` with a cache of `limit_bytes` for a model of `sizes`. `requests`: of `look`, where it was taken already.
    `serve` has at most `num_seqs` admitted at once (None: one request after the other, in steps of `step_tokens`).

    Requests that run take their memory from the same bytes, as in the engine; of one that is too long for these only
    as much as fits is played. ConfigError if the memory holds no request at all.
    """
    trace = playable(trace)
    scale = Scale(trace.block_size)
    requests = look(trace, states=sizes.checkpoint_bytes > 0) if requests is None else requests
    cache = PrefixCache(
        scale.memory(limit_bytes, sizes),
        num_seqs=num_seqs,
        retention=scale.retention(setting.interval),
        policy=setting.build,
    )
    step = max(scale.to_cache(step_tokens) // CHUNK, 1) * CHUNK
    script = _Script(trace, scale, cache.max_num_tokens - 1)
    hits, used = np.zeros(len(requests), np.int64), np.zeros((2, len(requests)), np.int64)
    memory = cache.memory
    for count, seq in enumerate((serve or partial(_one_by_one, step))(cache, script, script.answer)):
        script.forget(seq)
        hits[int(seq.request_id)] = scale.to_trace(seq.num_cached_tokens)
        used[0, count], used[1, count] = memory.blocks.num_used, memory.slots.num_used
        if progress is not None:
            progress(count + 1)
    used *= np.array([[memory.block_bytes], [memory.checkpoint_bytes]])
    return _result(trace, setting, sizes, requests, cache, scale, hits, used, script.cut_short)


class _Script:
    """The sequences of a trace's requests, none longer than `limit` tokens, and their answers. `cut_short`: how many
    would have been."""

    def __init__(self, trace: Trace, scale: Scale, limit: int) -> None:
        self._trace, self._scale, self._limit = trace, scale, limit
        self._running: dict[str, TraceRequest] = {}
        self.cut_short = 0

    def __iter__(self) -> Iterator[Sequence]:
        for number, request in enumerate(self._trace):
            seq = self._scale.sequence(number, request)
            if seq.num_tokens > self._limit:
                self.cut_short += 1
                del seq.tokens[self._limit :]
                seq.num_prompt_tokens = self._limit
            if seq.tokens:
                self._running[seq.request_id] = request
                yield seq

    def answer(self, seq: Sequence) -> None:
        self._scale.answer(seq, int(seq.request_id), self._running[seq.request_id], self._limit)

    def forget(self, seq: Sequence) -> None:
        del self._running[seq.request_id]


def _one_by_one(step: int, cache: PrefixCache, sequences: Iterable[Sequence], answer: Answer) -> Iterator[Sequence]:
    for seq in sequences:
        cache.admit(seq)
        _compute(cache, seq, step)
        answer(seq)
        _compute(cache, seq, step)
        cache.release(seq)
        yield seq


def _compute(cache: PrefixCache, seq: Sequence, step: int) -> None:
    while seq.num_computed < seq.num_tokens:
        end = min(seq.num_computed + step, seq.num_tokens)
        if not cache.grow(seq, end):
            raise IntegrityError(f"request {seq.request_id} is alone and finds no memory for {end} tokens")
        cache.keep_states(seq)
        seq.num_computed = end
        cache.publish(seq)


def _result(
    trace: Trace,
    setting: Setting,
    sizes: Sizes,
    requests: Requests,
    cache: PrefixCache,
    scale: Scale,
    hits: Counts,
    used: Counts,
    cut_short: int,
) -> Result:
    stats = cache.stats
    num = min(NUM_SAMPLES, len(requests))
    sampled = np.unique(np.linspace(0, max(len(requests) - 1, 0), num).astype(np.int64))
    kinds = {
        kind: KindOfBytes(int(row.max(initial=0)), float(row.mean()) if len(row) else 0.0, tuple(row[sampled].tolist()))
        for kind, row in zip(("kv", "state"), used, strict=True)
    }
    return Result(
        trace=trace.name,
        policy=setting.name,
        limit_bytes=cache.memory.limit_bytes,
        sizes=sizes,
        block_size=trace.block_size,
        requests=requests,
        hits=hits,
        cut_short=cut_short,
        bytes_by_kind=kinds,
        sampled=tuple(sampled.tolist()),
        evictions={
            "evicted": scale.to_trace(stats.evicted_blocks * BLOCK_SIZE),
            "thinned": stats.checkpoints_thinned,
            "stranded": stats.checkpoints_stranded,
        },
        states_made=stats.checkpoints_made,
        states_used=stats.checkpoints_used,
        resumed_from=dict(stats.resumed_from),
        misses={str(reason): count for reason, count in stats.misses.items()},
    )
