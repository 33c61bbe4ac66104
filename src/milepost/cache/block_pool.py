"""The KV blocks of one device by number: who holds them, and in which order the free ones are used again."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from milepost.errors import ConfigError


class IntegrityError(RuntimeError):
    """The books of the cache do not balance: a bug in Milepost, nothing that a user can act on."""


class BlockPool:
    """Reference counts of `num_blocks` blocks and their free list. Every operation is O(1) per block.

    A block is in exactly one of three places:

        in use   one reference or more
        empty    free, nothing in it is worth finding: used again first
        kept     free, but its content can still be found: used again when no empty one is left, least recently
                 released first; `on_reuse(block)` is called then, so that nobody finds it any more
    """

    def __init__(self, num_blocks: int, on_reuse: Callable[[int], None]) -> None:
        if num_blocks < 1:
            raise ConfigError(f"the KV cache needs at least 1 block, got {num_blocks}", "give it more memory")
        self.num_blocks = num_blocks
        self._on_reuse = on_reuse
        self._references = [0] * num_blocks
        self._findable = bytearray(num_blocks)
        self._empty = list(reversed(range(num_blocks)))
        self._kept: OrderedDict[int, None] = OrderedDict()

    @property
    def num_free(self) -> int:
        return len(self._empty) + len(self._kept)

    @property
    def num_kept(self) -> int:
        return len(self._kept)

    def num_references(self, block: int) -> int:
        return self._references[block]

    def is_findable(self, block: int) -> bool:
        return bool(self._findable[block])

    def free_blocks(self) -> list[int]:
        """All free blocks, in the order in which they will be used again."""
        return [*reversed(self._empty), *self._kept]

    def allocate(self, num_blocks: int) -> list[int] | None:
        """`num_blocks` free blocks with one reference each, contents undefined; None, and no change, if they lack."""
        if num_blocks > self.num_free:
            return None
        return [self._take() for _ in range(num_blocks)]

    def _take(self) -> int:
        if self._empty:
            block = self._empty.pop()
        else:
            block, _ = self._kept.popitem(last=False)
            self._findable[block] = 0
            self._on_reuse(block)
        self._references[block] = 1
        return block

    def share(self, block: int) -> None:
        """One more reference to a block that is in use or kept."""
        if not self._references[block]:
            if block not in self._kept:
                raise IntegrityError(f"block {block} is empty and cannot be shared")
            del self._kept[block]
        self._references[block] += 1

    def release(self, block: int) -> None:
        """One reference less; the last one frees the block. IntegrityError if it has none."""
        if not self._references[block]:
            raise IntegrityError(f"block {block} is released twice")
        self._references[block] -= 1
        if self._references[block]:
            return
        if self._findable[block]:
            self._kept[block] = None
        else:
            self._empty.append(block)

    def make_findable(self, block: int) -> None:
        """The content of a block in use is published: once free, the block is kept."""
        if not self._references[block]:
            raise IntegrityError(f"block {block} is free and cannot be published")
        self._findable[block] = 1

    def forget(self, block: int) -> None:
        """The content of `block` is not to be found any more: if free, it is empty now."""
        self._findable[block] = 0
        if block in self._kept:
            del self._kept[block]
            self._empty.append(block)

    def refresh(self, block: int) -> None:
        """If `block` is kept, it counts as released just now."""
        if block in self._kept:
            self._kept.move_to_end(block)
