"""What the prefix cache has given since the start."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from milepost.request import MissReason


@dataclass(slots=True)
class CacheStats:
    """Counters since the start. Queries and hits are tokens, as in vLLM's `prefix_cache_queries` and
    `prefix_cache_hits`: all tokens of each sequence that looked for a prefix, and those that it resumed; `matched`
    are those whose KV was found, resumed or not.

    A sequence counts once its first rows have run; one that reads no cache does not count. What a preempted sequence
    asks for when it comes back is counted apart: it mostly finds its own blocks, which says nothing about sharing.

    evicted_blocks        blocks of known prefixes given up for others
    checkpoints_made      states published
    checkpoints_used      of those, resumed from once or more
    checkpoints_thinned   of those, given up alone: their KV stayed
    checkpoints_stranded  lost because their KV was given up: a checkpoint goes with it, none outlives it
    pins_given_up         pinned prefixes that made room for a request which could not run otherwise
    resumed_from          sequences that resumed, by the kind of the checkpoint ("kv": from KV alone; "answer": from
                          one in an answer, whatever its kind)
    misses                sequences whose known prefix was not all resumed, by reason
    """

    queries: int = 0
    hits: int = 0
    matched: int = 0
    preempted_queries: int = 0
    preempted_hits: int = 0
    evicted_blocks: int = 0
    checkpoints_made: int = 0
    checkpoints_used: int = 0
    checkpoints_thinned: int = 0
    checkpoints_stranded: int = 0
    pins_given_up: int = 0
    resumed_from: Counter[str] = field(default_factory=Counter)
    misses: Counter[MissReason] = field(default_factory=Counter)

    def count(self, queries: int, matched: int, hits: int, preempted: bool) -> None:
        if preempted:
            self.preempted_queries += queries
            self.preempted_hits += hits
        else:
            self.queries += queries
            self.matched += matched
            self.hits += hits
