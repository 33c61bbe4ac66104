"""Whatever a policy keeps and gives up, answers are those of the plain loop and the books balance."""

from __future__ import annotations

from functools import partial

import pytest
from simulated_engine import Case, SimulatedEngine

from milepost.cache.policies.registry import DEFAULT, POLICIES
from milepost.cache.prefix_cache import PrefixCache


@pytest.mark.parametrize("name", [name for name in POLICIES if name != DEFAULT])
def test_random_schedules(name: str) -> None:
    cache = partial(PrefixCache, policy=POLICIES[name])
    events = [SimulatedEngine(Case(seed, faults=seed % 3 == 0), cache_type=cache).run() for seed in range(30)]  # type: ignore[arg-type]
    assert sum(found["states thinned"] + found["blocks evicted"] for found in events) > 50
