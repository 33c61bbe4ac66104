"""Who waits because another is computing what both share."""

from __future__ import annotations

from collections.abc import Iterable

from milepost.cache.keys import common_tokens, pack
from milepost.cache.prefix_cache import PrefixCache
from milepost.request import Sequence, Status


class Followers:
    """A waiting sequence follows a running one, its leader, if it can resume at least one unit of the cache deeper once
    the leader has computed its rows up to there; it waits until then. Should the leader be preempted, end, or turn out
    unsound before, it waits no longer.

    Two sequences are compared once, by ranges of packed tokens; a sequence that waits costs one look a step.
    """

    def __init__(self, cache: PrefixCache) -> None:
        self._cache = cache
        self._common: dict[Sequence, dict[Sequence, int]] = {}
        self._leaders: dict[Sequence, tuple[Sequence, int]] = {}

    def waits(self, seq: Sequence, running: Iterable[Sequence]) -> bool:
        """Whether `seq`, which is waiting, has a leader among `running`."""
        if seq in self._leaders:
            leader, depth = self._leaders[seq]
            if self._will_reach(leader, depth):
                return True
            del self._leaders[seq]
        if not self._cache.reads(seq):
            return False
        depth, leader = self._best(seq, running)
        if depth < self._cache.unit or depth - self._cache.resumable(seq) < self._cache.unit:
            return False
        self._leaders[seq] = leader, depth
        return True

    def waits_no_more(self, seq: Sequence) -> None:
        """`seq` runs, or has ended."""
        self._leaders.pop(seq, None)
        self._common.pop(seq, None)

    def leads_no_more(self, seq: Sequence) -> None:
        """`seq` does not run any more."""
        for common in self._common.values():
            common.pop(seq, None)
        self._leaders = {follower: found for follower, found in self._leaders.items() if found[0] is not seq}

    def _best(self, seq: Sequence, running: Iterable[Sequence]) -> tuple[int, Sequence]:
        """The deepest place that a running sequence will reach where `seq` could resume, and that sequence; 0 if there
        is none."""
        best = 0, seq
        for other in running:
            common = self._shared(seq, other)
            if common >= self._cache.unit:
                depth = self._cache.promised(other, common)
                if depth > best[0] and other.num_computed < depth:
                    best = depth, other
        return best

    def _will_reach(self, leader: Sequence, depth: int) -> bool:
        if leader.status is not Status.RUNNING or leader.num_computed >= depth:
            return False
        return leader.num_sound is None or leader.num_sound >= depth

    def _shared(self, seq: Sequence, other: Sequence) -> int:
        """Tokens that `seq` could resume of what `other` knows now: all but its last at most."""
        common = self._common.setdefault(seq, {})
        if other not in common:
            same = self._cache.scope(seq) == self._cache.scope(other)
            common[other] = min(_common(seq, other), seq.num_tokens - 1) if same else 0
        return common[other]


def _common(a: Sequence, b: Sequence) -> int:
    pack(a.packed, a.tokens)
    pack(b.packed, b.tokens)
    return common_tokens(a.packed, b.packed)
