"""The policies that there are."""

from __future__ import annotations

from collections.abc import Mapping

from milepost.cache.policies import greedy_dual_size, lru, marconi, thinning
from milepost.cache.policies.policy import Build

POLICIES: Mapping[str, Build] = {
    "thinning": thinning.build,
    "lru": lru.build,
    "greedy-dual-size": greedy_dual_size.build,
    "marconi": marconi.build,
}

DEFAULT = "thinning"
"""The engine's."""
