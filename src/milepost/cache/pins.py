"""Prefixes that are kept whatever comes: eviction cannot have them, as it cannot have what a running sequence holds."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from milepost.cache.keys import pack
from milepost.cache.store import Store
from milepost.cache.tree import Checkpoint, Hold, Scope, ancestors
from milepost.specs import BLOCK_SIZE

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Pin:
    """A hold on the first `hold.depth` tokens, and the last state there (None: there is none)."""

    hold: Hold
    checkpoint: Checkpoint | None


class Pins:
    """By name. Each is a hold as a running sequence has one, so the books need no rule of their own for them."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._pins: dict[str, Pin] = {}
        self.num_bytes = 0
        """Of all together; what two share counts once."""

    def __iter__(self) -> Iterator[Pin]:
        return iter(self._pins.values())

    def __contains__(self, name: str) -> bool:
        return name in self._pins

    def reach(self) -> Counter[int]:
        """How many pins reach into each node, by its id()."""
        return Counter(id(node) for pin in self for node in (pin.hold.node, *ancestors(pin.hold.node)))

    def add(self, name: str, tokens: Sequence[int], scope: Scope = "") -> int:
        """Pins what is known of these tokens, whole blocks, and the deepest state there; returns the tokens pinned.
        Takes the place of an earlier pin of that name."""
        tree, packed = self._store.tree, bytearray()
        pack(packed, tokens)
        node, depth = tree.match(scope, packed, len(tokens))
        made = None
        if node is not None and depth:
            made = Pin(tree.hold(node, depth), tree.deepest(node, depth))
            if made.checkpoint is not None:
                tree.pin(made.checkpoint)
        self.remove(name)
        if made is not None:
            self._pins[name] = made
            self._count()
        return depth

    def remove(self, name: str) -> bool:
        """The prefix is like any other again; False if there is no such pin."""
        pin = self._pins.pop(name, None)
        if pin is None:
            return False
        if pin.checkpoint is not None:
            self._store.tree.unpin(pin.checkpoint)
        self._store.let_go(pin.hold)
        self._count()
        return True

    def give_up(self) -> bool:
        """Removes the latest pin, so that somebody can run who could not otherwise; False if there is none."""
        if not self._pins:
            return False
        name, pin = next(reversed(self._pins.items()))
        logger.warning("%s, of %d tokens, is pinned no more: one request needs its memory", name, pin.hold.depth)
        self._store.stats.pins_given_up += 1
        return self.remove(name)

    def clear(self) -> None:
        """The tree is empty: nothing is left to hold."""
        self._pins.clear()
        self.num_bytes = 0

    def _count(self) -> None:
        memory = self._store.memory
        states = {id(pin.checkpoint) for pin in self if pin.checkpoint is not None}
        blocks = _num_covered(pin.hold for pin in self) // BLOCK_SIZE
        self.num_bytes = blocks * memory.block_bytes + len(states) * memory.checkpoint_bytes


def _num_covered(holds: Iterable[Hold]) -> int:
    """Tokens that one or more of them hold."""
    covered: dict[int, int] = {}
    for hold in holds:
        for node in (hold.node, *ancestors(hold.node)):
            reach = min(hold.depth, node.end) - node.start
            covered[id(node)] = max(reach, covered.get(id(node), 0))
    return sum(covered.values())
