"""Which block holds which 16 tokens after which prefix."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

Parent = int | str
"""What a published block continues: the serial number of the entry before it, or, for block 0, its scope."""


@dataclass(slots=True, eq=False)
class Entry:
    """One published block. `tokens` are its packed token ids; `serial` is never used twice."""

    serial: int
    parent: Parent
    key: bytes
    tokens: bytes
    block: int

    def fits(self, parent: Parent, tokens: bytes) -> bool:
        """Whether this is exactly `tokens` after exactly the prefix that ends in `parent`."""
        return self.parent == parent and self.tokens == tokens


class PrefixIndex:
    """Published blocks by key and by number; at most one per key.

    A key only proposes: an entry fits when its own tokens are equal and it continues the very entry that fitted before
    it, down to block 0, whose scope is compared. So two prefixes whose hashes collide are never taken for each other,
    not even after the entry between them has been evicted and its key given to a stranger.
    """

    def __init__(self) -> None:
        self._by_key: dict[bytes, Entry] = {}
        self._by_block: dict[int, Entry] = {}
        self._serials = count()

    def __len__(self) -> int:
        return len(self._by_block)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._by_block.values())

    def at_key(self, key: bytes) -> Entry | None:
        """The entry under `key`, which may be a stranger's."""
        return self._by_key.get(key)

    def at_block(self, block: int) -> Entry | None:
        return self._by_block.get(block)

    def insert(self, key: bytes, parent: Parent, tokens: bytes, block: int) -> Entry:
        """A new entry; neither its key nor its block may have one."""
        entry = Entry(next(self._serials), parent, key, tokens, block)
        self._by_key[key] = self._by_block[block] = entry
        return entry

    def remove(self, block: int) -> None:
        """Drops the entry of `block`. What continued it can no longer be reached."""
        del self._by_key[self._by_block.pop(block).key]

    def clear(self) -> None:
        self._by_key.clear()
        self._by_block.clear()
