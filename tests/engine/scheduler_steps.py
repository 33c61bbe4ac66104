"""Short sequences and steps of an engine whose model always says 5, for the scheduler's tests."""

from __future__ import annotations

from milepost.cache.memory import Memory
from milepost.cache.prefix_cache import PrefixCache
from milepost.cache.retention import Retention
from milepost.engine.scheduler import Scheduler, Step
from milepost.request import Sequence
from milepost.sampling_params import SamplingParams


def sequence(name: str, num_tokens: int, *, priority: int = 0, arrival: float = 0.0, index: int = 0) -> Sequence:
    """A sequence whose prompt begins like no other's, unless their names end alike (samples of one request)."""
    start = 1000 * (1 + int.from_bytes(name.encode()[-2:], "big"))
    tokens = list(range(start, start + num_tokens))
    return Sequence(name, tokens, num_tokens, SamplingParams(), index=index, priority=priority, arrival_time=arrival)


def kv_cache(num_blocks: int, *, enabled: bool = True, cache_type: type[PrefixCache] = PrefixCache) -> PrefixCache:
    """Of a model of attention alone, whose blocks take a byte."""
    return cache_type(Memory(num_blocks, 1), num_seqs=100, enabled=enabled)


def state_cache(
    limit_bytes: int, *, block_bytes: int = 16, state_bytes: int = 1590, interval: int | None = None, num_seqs: int = 10
) -> PrefixCache:
    """Of a model with states. As it stands, a token of KV takes a byte, and a state as much as KV of 1,590 tokens."""
    memory = Memory(limit_bytes, block_bytes, state_bytes)
    return PrefixCache(memory, num_seqs=num_seqs, retention=Retention(interval))


def scheduler(
    *,
    num_blocks: int = 1000,
    budget: int = 100,
    seats: int = 10,
    policy: str = "fcfs",
    cache: PrefixCache | None = None,
) -> Scheduler:
    cache = cache or kv_cache(num_blocks)
    return Scheduler(cache, max_num_batched_tokens=budget, max_num_seqs=seats, policy=policy)


def run(work: Scheduler, now: float = 0.0) -> Step:
    step = work.schedule(now)
    work.advance(step)
    for piece in step.pieces:
        if piece.samples:
            piece.seq.tokens.append(5)
    work.cache.check(work.running)
    return step


def rows(step: Step) -> dict[str, int]:
    return {piece.seq.request_id: piece.end - piece.start for piece in step.pieces}


def decoding(work: Scheduler, num_sequences: int, num_tokens: int = 8) -> list[Sequence]:
    """`num_sequences` that have read their prompts and have one row a step to compute."""
    sequences = [sequence(f"d{i:02}", num_tokens) for i in range(num_sequences)]
    for seq in sequences:
        work.add(seq)
    while any(seq.num_tokens == num_tokens for seq in sequences):
        run(work)
    while any(seq.num_computed + 1 != seq.num_tokens for seq in sequences):
        run(work)
    return sequences
