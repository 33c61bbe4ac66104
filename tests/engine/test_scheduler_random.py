"""Scheduler and cache together, under random requests, aborts, priorities, scopes, shortage and faults of memory."""

from __future__ import annotations

from collections import Counter

import pytest
from simulated_engine import Case, SimulatedEngine

FLOORS = {
    "preempted": 15,
    "aborted": 80,
    "aborted during a step": 80,
    "refused": 80,
    "ended by the cache's size": 10,
    "not sound": 40,
    "ended with a failed step": 40,
    "pinned": 150,
    "unpinned": 80,
    "pins given up": 5,
    "reset": 3,
    "blocks evicted": 500,
    "states thinned": 200,
    "resumed from kv": 100,
    "resumed from end": 150,
    "resumed from grid": 10,
    "resumed from boundary": 30,
    "resumed from breakpoint": 30,
    "resumed from junction": 10,
    "resumed from answer": 15,
    "resumed after preemption": 500,
    "resumed after eviction": 25,
    "resumed after an abort": 30,
    "miss: no prefix": 100,
    "miss: diverged": 80,
    "miss: evicted": 50,
    "miss: state thinned": 30,
    "miss: too short": 100,
    "miss: reading disabled": 100,
}
"""What 200 cases must at least have seen, of each kind of event."""


def run_seeds(seeds: range, faults: bool = False) -> Counter[str]:
    events: Counter[str] = Counter()
    for seed in seeds:
        try:
            events += SimulatedEngine(Case(seed, faults)).run()
        except Exception as error:
            raise AssertionError(f"case {seed}") from error
    return events


def test_every_schedule_gives_the_tokens_of_the_plain_loop() -> None:
    events = run_seeds(range(200))
    few = {event: (events[event], floor) for event, floor in FLOORS.items() if events[event] < floor}
    assert not few, f"the sample has too few of: {few}"


def test_memory_that_is_refused_costs_time_and_nothing_else() -> None:
    events = run_seeds(range(100), faults=True)
    assert events["preempted"] > 100


@pytest.mark.full
@pytest.mark.timeout(7200)
def test_every_schedule_gives_the_tokens_of_the_plain_loop_a_hundred_thousand_times() -> None:
    events = run_seeds(range(200, 60_200))
    print("what the schedules have seen:", *(f"{event}: {events[event]}" for event in FLOORS), sep="\n    ")
    few = {event: events[event] for event, floor in FLOORS.items() if events[event] < 200 * floor}
    assert not few, f"the sample has too few of: {few}"
    run_seeds(range(100, 40_100), faults=True)
