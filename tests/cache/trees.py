"""Trees to look at, and caches with sequences in them."""

from __future__ import annotations

from itertools import count

from milepost.cache.keys import pack
from milepost.cache.memory import Memory
from milepost.cache.prefix_cache import PrefixCache
from milepost.cache.retention import Retention
from milepost.cache.tree import Checkpoint, Hold, Node, Tree
from milepost.request import Sequence
from milepost.sampling_params import SamplingParams


class Offers:
    """Notes what a tree offers and withdraws."""

    def __init__(self) -> None:
        self.offered: list[Node | Checkpoint] = []
        self.gone: list[Node | Checkpoint] = []

    def offer(self, thing: Node | Checkpoint) -> None:
        self.offered.append(thing)

    def withdraw(self, thing: Node | Checkpoint) -> None:
        self.gone.append(thing)


class Grove:
    """A tree whose blocks are numbered as they come."""

    def __init__(self) -> None:
        self.offers = Offers()
        self.tree = Tree(self.offers)
        self._blocks = count(100)

    def write(self, tokens: list[int], scope: str = "") -> tuple[Hold, list[int], list[int]]:
        """Publishes whole blocks of tokens from the start; the hold, the block table afterwards, and the blocks that
        were not needed."""
        hold = self.tree.hold(self.tree.root(scope), 0)
        table = [next(self._blocks) for _ in range(len(tokens) // 16)]
        replaced = self.tree.publish(hold, packed(tokens), len(tokens) // 16 * 16, table, 0.0)
        return hold, table, replaced

    def match(self, tokens: list[int], scope: str = "") -> int:
        return self.tree.match(scope, packed(tokens), len(tokens))[1]

    def shape(self) -> list[tuple[int, int]]:
        """(start, end) of all nodes but roots."""
        return sorted((node.start, node.end) for node in self.tree if node.parent is not None)


def packed(tokens: list[int]) -> bytearray:
    data = bytearray()
    pack(data, tokens)
    return data


def sequence(
    tokens: list[int], *, salt: str = "", every_row: bool = False, breakpoints: tuple[int, ...] = ()
) -> Sequence:
    params = SamplingParams(prompt_logprobs=0 if every_row else None)
    return Sequence("request", list(tokens), len(tokens), params, cache_salt=salt, breakpoints=breakpoints)


def kv_cache(num_blocks: int, *, enabled: bool = True) -> PrefixCache:
    """Of a model of attention alone, whose blocks take a byte."""
    return PrefixCache(Memory(num_blocks, 1), num_seqs=10, enabled=enabled)


def state_cache(
    num_blocks: int, num_states: int, *, block_bytes: int = 1, state_bytes: int = 10, interval: int | None = None
) -> PrefixCache:
    """Of a model with states, which has room for so many blocks and states together."""
    limit = num_blocks * block_bytes + num_states * state_bytes
    return PrefixCache(Memory(limit, block_bytes, state_bytes), num_seqs=10, retention=Retention(interval))


def compute(cache: PrefixCache, seq: Sequence, num_tokens: int | None = None) -> None:
    """Rows up to `num_tokens` (None: all) get memory, run, and are published."""
    num_tokens = len(seq.tokens) if num_tokens is None else num_tokens
    assert cache.grow(seq, num_tokens)
    cache.keep_states(seq)
    seq.num_computed = num_tokens
    cache.publish(seq)


def serve(
    cache: PrefixCache, tokens: list[int], *, salt: str = "", every_row: bool = False, beside: tuple[Sequence, ...] = ()
) -> int:
    """A whole life of a sequence, beside others that run; returns the tokens it resumed."""
    seq = sequence(tokens, salt=salt, every_row=every_row)
    resumed = cache.admit(seq)
    compute(cache, seq)
    cache.check([seq, *beside])
    cache.release(seq)
    cache.check(beside)
    return resumed
