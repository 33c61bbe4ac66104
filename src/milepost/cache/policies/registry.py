"""The policies that there are."""

from __future__ import annotations

from collections.abc import Mapping

from milepost.cache.policies import thinning
from milepost.cache.policies.policy import Build

POLICIES: Mapping[str, Build] = {
    "thinning": thinning.build,
}

DEFAULT = "thinning"
"""The engine's."""
