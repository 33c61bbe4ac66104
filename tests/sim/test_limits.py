"""Bound and schedule: against the best of all schedules on tiny traces, and against figures worked out by hand."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest

from milepost.sim.bound import Demand, upper_bound
from milepost.sim.limits import limits
from milepost.sim.returns import returns_of
from milepost.sim.schedule import Schedule, feasible_schedule
from milepost.sim.sizes import Sizes
from milepost.sim.trace import Trace, TraceRequest

BLOCK = 64


def request(time_ms: float, blocks: Sequence[int], rest: int = 1, scope: str = "") -> TraceRequest:
    return TraceRequest(time_ms, scope, len(blocks) * BLOCK + rest, 1, np.array(blocks, np.int64))


def trace(*prompts: Sequence[int], rest: int = 1) -> Trace:
    requests = [request(1000.0 * number, blocks, rest) for number, blocks in enumerate(prompts)]
    return Trace("by hand", BLOCK, lambda: iter(requests))


def schedule_of(some: Trace, sizes: Sizes, limit_bytes: int) -> tuple[float, Schedule]:
    """The bound, and a schedule that has been played."""
    demand = Demand(returns_of(some, states=sizes.checkpoint_bytes > 0), sizes)
    bound = upper_bound(demand, limit_bytes)
    found = feasible_schedule(demand, limit_bytes, bound.prices, tries=200)
    played = play(some, sizes, found.depths.tolist())
    assert played == (found.tokens, found.peak_bytes)
    assert found.peak_bytes <= limit_bytes
    return bound.tokens, found


def play(some: Trace, sizes: Sizes, depths: Sequence[int]) -> tuple[int, int]:
    """Block by block what must be kept for these depths: tokens resumed, and the most bytes in any gap."""
    had_kv: dict[tuple[str, int], int] = {}
    had_state: dict[tuple[str, int], int] = {}
    used = np.zeros(len(depths) + 1, np.int64)
    tokens = 0
    for number, (one, depth) in enumerate(zip(some, depths, strict=True)):
        blocks = [(one.scope, block) for block in one.blocks.tolist()]
        assert depth < one.input_length
        count = -(-depth // BLOCK)
        for place, block in enumerate(blocks[:count]):
            kept = min(depth - place * BLOCK, BLOCK) * sizes.kv_bytes_per_token
            used[had_kv[block] : number] += kept
        if count and sizes.checkpoint_bytes:
            assert depth % BLOCK == 0
            used[had_state[blocks[count - 1]] : number] += sizes.checkpoint_bytes
        had_kv |= dict.fromkeys(blocks, number)
        had_state |= dict.fromkeys(blocks[max(count - 1, 0) :], number)
        tokens += depth
    return tokens, int(used.max())


def best_of_all(some: Trace, sizes: Sizes, limit_bytes: int) -> int:
    """The most tokens that any schedule saves: for each set of blocks and states, the best way to hold just these."""
    paths = [one.blocks.tolist() for one in some]
    names = {block: place for place, block in enumerate(sorted({block for path in paths for block in path}))}
    num = len(names)
    sets = np.arange(1 << 2 * num)  # bit b: the KV of block b; bit num + b: the state at its end
    bits = sets[:, None] >> np.arange(2 * num) & 1
    weights = [BLOCK * sizes.kv_bytes_per_token] * num + [sizes.checkpoint_bytes] * num
    too_large = bits @ np.array(weights) > limit_bytes
    best = np.where(sets == 0, 0.0, -np.inf)
    for path in paths:
        places = [names[block] for block in path]
        reached = np.full(len(sets), -np.inf)
        for depth in range(len(places) + 1):
            needed = sum(1 << place for place in places[:depth]) | (1 << num + places[depth - 1] if depth else 0)
            at_hand = sum(1 << place for place in places) | sum(1 << num + place for place in places[depth:])
            able = sets[(sets & needed == needed) & np.isfinite(best)]
            np.maximum.at(reached, able | at_hand, best[able] + depth * BLOCK)
        for bit in range(2 * num):  # anything may be dropped
            without = sets[sets >> bit & 1 == 0]
            reached[without] = np.maximum(reached[without], reached[without | 1 << bit])
        best = np.where(too_large, -np.inf, reached)
    return int(best.max())


def random_case(seed: int) -> tuple[Trace, Sizes, int]:
    """Up to nine prompts over a tree of at most five blocks."""
    rng = random.Random(seed)
    paths: list[list[int]] = [[]]
    for block in range(rng.randint(3, 5)):
        paths.append([*rng.choice(paths[-2:] if rng.random() < 0.7 else paths), block])
    prompts = [rng.choice(paths[1:]) for _ in range(rng.randint(4, 9))]
    sizes = Sizes(rng.randint(1, 4), rng.choice((1, 50, 150, 400)))
    return trace(*prompts), sizes, rng.randint(sizes.checkpoint_bytes + BLOCK, 900)


def test_the_best_lies_between_them() -> None:
    exact = below_ceiling = 0
    for seed in range(60):
        some, sizes, limit_bytes = random_case(seed)
        best = best_of_all(some, sizes, limit_bytes)
        bound, found = schedule_of(some, sizes, limit_bytes)
        ceiling = Demand(returns_of(some), sizes).ceiling
        assert found.tokens <= best <= bound + 1e-6 <= ceiling + 1e-5, f"seed {seed}"
        exact += found.tokens == best
        below_ceiling += bound < ceiling - 1
    assert exact >= 50  # the schedule is no idle one,
    assert below_ceiling >= 30  # nor is the bound


def chats(seed: int) -> Trace:
    """300 prompts: the newest twelve of some chats go on, each behind one of four system prompts."""
    rng = random.Random(seed)
    open_chats: list[list[int]] = []
    prompts: list[list[int]] = []
    last = 100
    for _ in range(300):
        if not open_chats or rng.random() < 0.25:
            open_chats.append([rng.randint(0, 3)])
        chat = rng.choice(open_chats[-12:])
        for _ in range(rng.randint(1, 4)):
            last += 1
            chat.append(last)
        prompts.append(list(chat))
    return trace(*prompts)


def test_they_are_close_and_further_tries_bring_them_closer() -> None:
    demand = Demand(returns_of(chats(1)), Sizes(1, 150))
    bound = upper_bound(demand, 5000)
    first, then = (feasible_schedule(demand, 5000, bound.prices, tries=tries).tokens for tries in (0, 300))
    assert bound.tokens < 0.98 * demand.ceiling
    assert 0.95 * bound.tokens < first < then < bound.tokens


def test_rows_are_the_blocks_with_one_last_visit() -> None:
    returns = returns_of(trace([1, 2, 3], [1, 2, 9], [1], [1, 2, 3, 4]))
    rows = zip(returns.request.tolist(), returns.source.tolist(), returns.depth.tolist(), strict=True)
    assert list(rows) == [(1, 0, 128), (2, 1, 64), (3, 2, 64), (3, 1, 128), (3, 0, 192)]
    assert (returns.num_requests, returns.input_tokens) == (4, 64 * 11 + 4)


def test_the_last_token_is_computed() -> None:
    whole = trace([1, 2], [1, 2], rest=0)
    assert returns_of(whole).depth.tolist() == [64]
    assert returns_of(whole, states=False).depth.tolist() == [112]


def test_scopes_share_nothing() -> None:
    requests = [request(0, [1], scope="a"), request(1, [1], scope="b"), request(2, [1], scope="a")]
    returns = returns_of(Trace("two scopes", BLOCK, lambda: iter(requests)))
    assert (returns.request.tolist(), returns.source.tolist()) == ([2], [0])


def test_enough_memory_gives_the_ceiling() -> None:
    bound, found = schedule_of(trace([1, 2], [3, 4], [1, 2], [3, 4]), Sizes(1, 10), 2 * (128 + 10))
    assert (bound, found.tokens) == (256, 256)


@pytest.mark.parametrize(("limit_bytes", "tokens"), [(137, 64), (138, 128), (74, 64), (73, 0)])
def test_a_prefix_needs_all_of_its_kv_and_a_state(limit_bytes: int, tokens: int) -> None:
    bound, found = schedule_of(trace([1, 2], [1, 2]), Sizes(1, 10), limit_bytes)
    assert found.tokens == tokens
    assert bound == pytest.approx(128 * limit_bytes / 138, rel=0.01)  # as if any share of it could be kept


def test_two_that_cross_share_the_budget() -> None:
    """Room for one prefix and a half: one of them is kept whole, of the other the part that fits."""
    bound, found = schedule_of(trace([1, 2], [3, 4], [1, 2], [3, 4]), Sizes(1, 10), 138 + 74)
    assert found.tokens == 192
    assert 192 <= bound < 200


def test_a_visit_behind_a_state_does_not_have_it_again() -> None:
    """[1] comes after [1, 2] has resumed at its end: the state at 64 tokens must be kept through that visit."""
    some = trace([1, 2], [1, 2], [1])
    bound, found = schedule_of(some, Sizes(1, 100), 128 + 200)
    assert (bound, found.tokens, found.peak_bytes) == (192, 192, 128 + 200)
    assert schedule_of(some, Sizes(1, 100), 128 + 200 - 1)[1].tokens == 128


def test_a_visit_resumes_less_so_that_its_state_serves_the_next() -> None:
    """Resuming all of it, it would leave the state at 128 tokens behind, and there is no room to keep that one too."""
    bound, found = schedule_of(trace([1, 2, 3], [1, 2, 3], [1, 2]), Sizes(1, 100), 350)
    assert found.depths.tolist() == [0, 128, 128]
    assert bound == 320


def test_models_without_states_and_without_kv() -> None:
    some = trace([1, 2], [3, 4], [1, 2], [3, 4])
    assert schedule_of(some, Sizes(1, 0), 200)[1].tokens == 128 + 64
    assert schedule_of(some, Sizes(0, 10), 19)[1].tokens == 128
    assert schedule_of(some, Sizes(0, 10), 20)[1].tokens == 256


def test_more_steps_bring_the_bound_closer() -> None:
    some, sizes, limit_bytes = (
        trace(*([1, 2], [3, 4], [5, 6], [1, 2], [3, 4], [5, 6], *([7, 8],) * 6)),
        Sizes(1, 10),
        276,
    )
    demand = Demand(returns_of(some), sizes)
    assert upper_bound(demand, limit_bytes).tokens < upper_bound(demand, limit_bytes, steps=0).tokens - 10


def test_limits_are_shares_of_the_input() -> None:
    found = list(limits(trace([1, 2], [1, 2]), Sizes(1, 10), (138, 1)))
    assert [one.limit_bytes for one in found] == [138, 1]
    assert (found[0].upper_bound, found[0].feasible) == (128 / 258, 128 / 258)
    assert found[1].feasible == 0


@pytest.mark.parametrize("prompts", [(), ([1, 2],), ([1], [2])])
def test_nothing_comes_back(prompts: tuple[list[int], ...]) -> None:
    (found,) = limits(trace(*prompts), Sizes(1, 10), (100,))
    assert (found.upper_bound, found.feasible) == (0, 0)
