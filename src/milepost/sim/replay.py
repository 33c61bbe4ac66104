"""Replays a trace through the engine's own prefix cache, one request after the other."""

from __future__ import annotations

from collections.abc import Callable
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
from milepost.sim.trace import Trace
from milepost.specs import BLOCK_SIZE, CHUNK

STEP_TOKENS = 2048
"""Rows of a step, as the engine's `max_num_batched_tokens`."""

NUM_SAMPLES = 240

Progress = Callable[[int], None]
"""Told how many requests have been played."""


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
    progress: Progress | None = None,
) -> Result:
    """`trace` with a cache of `limit_bytes` for a model of `sizes`. `requests`: of `look`, where it was taken already.

    The request that runs takes its memory from the same bytes, as in the engine; of a longer one only as much as fits
    is played. ConfigError if the memory holds no request at all.
    """
    trace = playable(trace)
    scale = Scale(trace.block_size)
    requests = look(trace, states=sizes.checkpoint_bytes > 0) if requests is None else requests
    cache = PrefixCache(
        scale.memory(limit_bytes, sizes), num_seqs=1, retention=scale.retention(setting.interval), policy=setting.build
    )
    step = max(scale.to_cache(step_tokens) // CHUNK, 1) * CHUNK
    hits, used = np.zeros(len(requests), np.int64), np.zeros((2, len(requests)), np.int64)
    cut_short = 0
    memory = cache.memory
    for number, request in enumerate(trace):
        seq = scale.sequence(number, request)
        if seq.num_tokens > cache.max_num_tokens:
            cut_short += 1
            del seq.tokens[cache.max_num_tokens :]
            seq.num_prompt_tokens = cache.max_num_tokens
        if seq.tokens:
            answer = partial(scale.answer, seq, number, request, cache.max_num_tokens)
            hits[number] = scale.to_trace(_serve(cache, seq, step, answer))
        used[0, number], used[1, number] = memory.blocks.num_used, memory.slots.num_used
        if progress is not None:
            progress(number + 1)
    used *= np.array([[memory.block_bytes], [memory.checkpoint_bytes]])
    return _result(trace, setting, sizes, requests, cache, scale, hits, used, cut_short)


def _serve(cache: PrefixCache, seq: Sequence, step: int, answer: Callable[[], None]) -> int:
    """A whole life of `seq`, alone; returns the tokens that it resumed. `answer` lengthens it."""
    resumed = cache.admit(seq)
    _compute(cache, seq, seq.num_tokens, step)
    answer()
    _compute(cache, seq, seq.num_tokens - 1, step)  # the last token of an answer is never read
    cache.release(seq)
    return resumed


def _compute(cache: PrefixCache, seq: Sequence, until: int, step: int) -> None:
    while seq.num_computed < until:
        end = min(seq.num_computed + step, until)
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
