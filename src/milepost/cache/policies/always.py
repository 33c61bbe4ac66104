"""Every state that the retention wants gets a slot, as the baselines have it."""

from __future__ import annotations

from math import inf

from milepost.cache.policies.policy import StatesAhead, Take


class Always:
    """At the cost of anything else that nobody uses; special ones first, the deeper ones last."""

    def plan(self, ahead: StatesAhead, take: Take) -> None:
        for point, _ in sorted(ahead.kinds.items(), key=lambda one: (one[1] == "grid", one[0])):
            if not take(point, inf):
                return
