"""The policies that there are."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from milepost.cache.policies import greedy_dual_size, lru, returns, thinning
from milepost.cache.policies.policy import Build, Facts, Policy
from milepost.errors import ConfigError

MARCONIS = {f"marconi-{alpha}": alpha for alpha in (0.1, 0.5, 1.0, 2.0)}


def _marconi(facts: Facts, alpha: float) -> Policy:
    from milepost.cache.policies import marconi  # with numpy, which no command needs at its start

    return marconi.build(facts, alpha)


POLICIES: Mapping[str, Build] = {
    "returns": returns.build,
    "thinning": thinning.build,
    "lru": lru.build,
    "lru-2048": lru.build,
    "lru-ends": lru.build,
    "greedy-dual-size": greedy_dual_size.build,
    **{name: partial(_marconi, alpha=alpha) for name, alpha in MARCONIS.items()},
}

INTERVALS: Mapping[str, int] = {
    "lru-2048": 2048,
    "lru-ends": 0,
    "greedy-dual-size": 0,
    **dict.fromkeys(MARCONIS, 0),
}
"""The retention interval that a policy is meant for, in tokens; the others are for dense states."""

DEFAULT = "thinning"
"""The engine's."""

SERVED = (DEFAULT, "returns")
"""Those that an engine takes: `prefix_cache_policy`. The others are for comparison."""


def policy_named(name: str) -> Build:
    """ConfigError for one that no engine takes."""
    if name not in SERVED:
        raise ConfigError(f"--prefix-cache-policy cannot be {name!r}", f"one of: {', '.join(SERVED)}")
    return POLICIES[name]


def flag_of(name: str) -> str | None:
    """Of `milepost serve`; "" for the default, None where there is none."""
    if name == DEFAULT:
        return ""
    return f"--prefix-cache-policy {name}" if name in SERVED else None
