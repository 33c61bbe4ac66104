"""What each peer is known to reach on this machine: the best median of all runs so far, kept in a file."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from bench.measures import Measure
from bench.turns import Values


class Usual:
    """Medians by shape, measure and engine."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._known: dict[str, dict[str, dict[str, float]]] = json.loads(path.read_text()) if path.exists() else {}

    def of(self, shape: str, measure: Measure) -> dict[str, float]:
        return dict(self._known.get(shape, {}).get(measure.name, {}))

    def learn(self, shape: str, measure: Measure, peers: Iterable[Values]) -> None:
        """Keeps the better of what is known and what was found, and writes the file."""
        known = self._known.setdefault(shape, {}).setdefault(measure.name, {})
        for peer in peers:
            if peer.values and measure.ratio(peer.median, known.get(peer.engine, peer.median)) >= 1:
                known[peer.engine] = peer.median
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps(self._known, indent=2, sort_keys=True) + "\n")
