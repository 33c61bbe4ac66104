"""A trace through the cache, on traces whose outcome can be counted by hand."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from milepost.cache.policies.registry import DEFAULT, POLICIES
from milepost.errors import ConfigError
from milepost.sim.play import Scale
from milepost.sim.replay import Setting, look, replay
from milepost.sim.sizes import Sizes
from milepost.sim.trace import Trace, TraceRequest

SIZES = Sizes(10, 1000)
ENDLESS = 10**9


def trace_of(*prompts: tuple[list[int], int], block_size: int = 512, scope: str = "") -> Trace:
    """Prompts by their full blocks and their lengths in tokens."""

    def read() -> Iterator[TraceRequest]:
        for number, (blocks, length) in enumerate(prompts):
            yield TraceRequest(1000.0 * number, scope, length, 10, np.array(blocks, np.int64))

    return Trace("by hand", block_size, read)


CHAT = trace_of(([1, 2], 1100), ([1, 2, 3, 4], 2048), ([1, 2, 3, 4], 2048), ([1, 9], 1024), ([7], 600))


def test_what_a_cache_without_end_would_give() -> None:
    seen = look(CHAT)
    assert seen.input_tokens.tolist() == [1100, 2048, 2048, 1024, 600]
    assert seen.ceiling.tolist() == [0, 1024, 1536, 512, 0]
    assert look(CHAT, states=False).ceiling.tolist() == [0, 1024, 1920, 512, 0]
    assert len(look(trace_of())) == 0


def test_with_memory_for_all_it_is_what_the_replay_gives() -> None:
    found = replay(CHAT, Setting(), SIZES, ENDLESS)
    assert found.hits.tolist() == found.requests.ceiling.tolist()
    assert (found.hit_rate, found.ceiling) == (3072 / 6820, 3072 / 6820)
    assert found.recomputed_tokens == 0
    assert found.hit_rate_between(0.4, 0.8) == 2048 / 3072
    assert (found.trace, found.policy, found.limit_bytes, found.cut_short) == ("by hand", DEFAULT, ENDLESS, 0)


def test_bytes_of_kv_are_those_of_the_traces_tokens() -> None:
    found = replay(trace_of(([1, 2], 1024)), Setting(), SIZES, ENDLESS)
    assert found.bytes_by_kind["kv"].peak == 1024 * 10
    assert found.bytes_by_kind["state"].peak == 2 * 1000
    assert found.bytes_by_kind["state"].sampled == (2000,)
    assert found.states_made == 2


def test_states_are_kept_by_the_interval_in_the_traces_tokens() -> None:
    blocks = list(range(8))
    trace = trace_of((blocks, 4097), ([*blocks[:5], 77], 3073))
    hits = {interval: replay(trace, Setting(interval=interval), SIZES, ENDLESS).hits[1] for interval in (None, 0, 2048)}
    assert hits == {None: 2560, 0: 0, 2048: 2048}


def test_scopes_share_nothing() -> None:
    one, other = trace_of(([1, 2], 1100), scope="a"), trace_of(([1, 2], 1100), scope="b")
    both = Trace("both", 512, lambda: iter([*one, *other]))
    assert replay(both, Setting(), SIZES, ENDLESS).hits.tolist() == [0, 0]
    assert look(both).ceiling.tolist() == [0, 0]


def test_what_goes_is_counted_by_reason() -> None:
    trace = trace_of(*(([10 * k, 10 * k + 1], 1024) for k in range(6)), ([50, 51], 1024), ([0, 1], 1024))
    found = replay(trace, Setting("lru", POLICIES["lru"]), SIZES, 30_000)
    assert found.hits.tolist() == [0] * 6 + [512, 0]
    assert found.evictions["evicted"] >= 4 * 1024
    assert found.evictions["thinned"] + found.evictions["stranded"] >= 4
    assert found.misses["no prefix"] >= 5
    assert (
        max(found.bytes_by_kind["kv"].sampled[k] + found.bytes_by_kind["state"].sampled[k] for k in range(8)) <= 30_000
    )


def test_of_a_prompt_that_is_too_long_the_first_part_is_played() -> None:
    long = list(range(40))
    found = replay(trace_of((long, 20480), (long, 20480)), Setting(), SIZES, 100_000)
    assert found.cut_short == 2
    assert 512 * 10 <= found.hits[1] < 10_000
    with pytest.raises(ConfigError):
        replay(CHAT, Setting(), SIZES, 100)


def test_short_blocks_are_played_by_the_grid() -> None:
    trace = trace_of((list(range(20)), 320), ([*range(10), 99], 176), block_size=16)
    found = replay(trace, Setting(), SIZES, ENDLESS)
    assert (found.block_size, found.hits.tolist()) == (64, [0, 128])


def test_prompts_without_a_full_block_or_without_tokens() -> None:
    assert replay(trace_of(([], 300), ([], 0), ([], 300)), Setting(), SIZES, ENDLESS).hits.tolist() == [0, 0, 0]


def test_tokens_of_a_block_are_its_id_and_the_rest_is_nobody_elses() -> None:
    scale = Scale(512)
    first, second = (scale.sequence(number, request) for number, request in enumerate(trace_of(([5], 525), ([5], 525))))
    assert (first.num_tokens, first.num_prompt_tokens, len(first.packed)) == (65, 65, 65 * 4)
    assert first.packed[:256] == second.packed[:256]
    assert first.packed[256:] != second.packed[256:]
    assert second.arrival_time == 1.0
