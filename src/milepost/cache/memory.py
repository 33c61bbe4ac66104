"""Numbers of KV blocks and of checkpoint slots, and the one byte budget that they share."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from milepost.errors import ConfigError
from milepost.specs import BLOCK_SIZE, CHUNK

GiveBack = Callable[[Sequence[int], Sequence[int]], None]
"""Told free blocks and free checkpoint slots whose pages the machine may have back; their contents are lost."""


class IntegrityError(RuntimeError):
    """The books of the cache do not balance: a bug in Milepost, nothing that a user can act on."""


class Memory:
    """Hands out block ids `0 .. num_blocks - 1` and slot ids `1 .. num_slots - 1` under `limit_bytes`.

    Each side has as many ids as the whole limit would hold, so that either can grow at the other's cost: the runner
    reserves address space for all of them. An id is in one of these places:

        in use   counted in `used_bytes`, which never passes the limit
        warm     free, its pages still resident: used again first
        cold     never used, or given back: no pages

    In use and warm together are `resident_bytes`, which never pass the limit either: where a cold id is needed, warm
    ones of the other kind are handed to `give_back` first. Slot 0, the state of the empty prefix, is not counted.
    """

    def __init__(
        self, limit_bytes: int, block_bytes: int, checkpoint_bytes: int = 0, give_back: GiveBack | None = None
    ) -> None:
        """`block_bytes` and `checkpoint_bytes` may be 0: of that kind there is nothing then."""
        least = block_bytes + 2 * checkpoint_bytes  # a sequence reads one state while it writes the next
        if least <= 0 or limit_bytes < least:
            raise ConfigError(
                f"the cache has {limit_bytes} bytes and needs at least {least}, for one block and two states",
                "give it more memory",
            )
        self.limit_bytes, self.block_bytes, self.checkpoint_bytes = limit_bytes, block_bytes, checkpoint_bytes
        self.blocks = Ids("block", 0, limit_bytes // block_bytes if block_bytes else 0)
        self.slots = Ids("slot", 1, limit_bytes // checkpoint_bytes if checkpoint_bytes else 0)
        self.give_back = give_back

    @property
    def used_bytes(self) -> int:
        return self.blocks.num_used * self.block_bytes + self.slots.num_used * self.checkpoint_bytes

    @property
    def resident_bytes(self) -> int:
        warm = len(self.blocks.warm) * self.block_bytes + len(self.slots.warm) * self.checkpoint_bytes
        return self.used_bytes + warm

    @property
    def free_bytes(self) -> int:
        return self.limit_bytes - self.used_bytes

    def prefix_bytes(self, num_tokens: int) -> int:
        """Of the whole blocks of so many tokens, and of one state at the last grid point there."""
        state = self.checkpoint_bytes if num_tokens >= CHUNK else 0
        return num_tokens // BLOCK_SIZE * self.block_bytes + state

    def take(self, num_blocks: int, num_slots: int) -> tuple[list[int], list[int]] | None:
        """So many blocks and slots, contents undefined; None, and nothing changed, if the bytes lack."""
        if num_blocks * self.block_bytes + num_slots * self.checkpoint_bytes > self.free_bytes:
            return None
        taken = self.blocks.take(num_blocks), self.slots.take(num_slots)
        excess = self.resident_bytes - self.limit_bytes
        if excess > 0:
            self._cool(excess)
        return taken

    def free(self, blocks: Sequence[int], slots: Sequence[int]) -> None:
        """Takes them back; IntegrityError for one that is not in use."""
        self.blocks.free(blocks)
        self.slots.free(slots)

    def _cool(self, num_bytes: int) -> None:
        blocks = self.blocks.cool(num_bytes, self.block_bytes)
        slots = self.slots.cool(num_bytes - len(blocks) * self.block_bytes, self.checkpoint_bytes)
        if self.give_back is not None:
            self.give_back(blocks, slots)


class Ids:
    """Ids `first .. first + count - 1` of one kind, O(1) each."""

    def __init__(self, name: str, first: int, count: int) -> None:
        self.name, self.first, self.count = name, first, count
        self.warm: list[int] = []
        self._fresh = first  # this and those after it were never used
        self._cooled: list[int] = []
        self.num_used = 0
        self._in_use = bytearray(first + count)

    @property
    def cold(self) -> list[int]:
        """All that have no pages. Slow."""
        return [*self._cooled, *range(self._fresh, self.first + self.count)]

    def in_use(self, number: int) -> bool:
        return self.first <= number < self.first + self.count and bool(self._in_use[number])

    def used(self) -> set[int]:
        """All ids in use. Slow."""
        return {number for number, used in enumerate(self._in_use) if used}

    def take(self, count: int) -> list[int]:
        """`count` ids, warm ones first; there must be as many."""
        taken = _pop_last(self.warm, count)
        taken += _pop_last(self._cooled, count - len(taken))
        num_fresh = count - len(taken)
        taken += range(self._fresh, self._fresh + num_fresh)
        self._fresh += num_fresh
        for number in taken:
            self._in_use[number] = 1
        self.num_used += count
        return taken

    def free(self, numbers: Sequence[int]) -> None:
        in_use, end = self._in_use, self.first + self.count
        for number in numbers:
            if not (self.first <= number < end and in_use[number]):
                raise IntegrityError(f"{self.name} {number} is freed and not in use")
            in_use[number] = 0
        self.warm += numbers
        self.num_used -= len(numbers)

    def cool(self, num_bytes: int, item_bytes: int) -> list[int]:
        """Warm ids of at least `num_bytes`, or all there are: they are cold now. Those used least recently go."""
        count = min(-(-num_bytes // item_bytes) if item_bytes and num_bytes > 0 else 0, len(self.warm))
        cooled = self.warm[:count]
        del self.warm[:count]
        self._cooled += cooled
        return cooled


def _pop_last(numbers: list[int], count: int) -> list[int]:
    """Takes the last `count`, or all there are, away from `numbers`; the last one comes first."""
    if not count:
        return []
    taken = numbers[: -count - 1 : -1]
    del numbers[-count:]
    return taken
