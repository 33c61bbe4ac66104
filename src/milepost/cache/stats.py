"""What the prefix cache did, in numbers that only grow."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class CacheStats:
    """Counters since the start. Queries and hits are tokens, as in vLLM's `prefix_cache_queries` and
    `prefix_cache_hits`: all tokens of each sequence that looked for a prefix, and those that it found.

    A sequence counts once its first rows have run; one that reads no cache does not count. What a preempted sequence
    asks for when it comes back is counted apart: it mostly finds its own blocks, which says nothing about sharing.
    """

    queries: int = 0
    hits: int = 0
    preempted_queries: int = 0
    preempted_hits: int = 0
    evicted_blocks: int = 0

    def count(self, queries: int, hits: int, preempted: bool) -> None:
        if preempted:
            self.preempted_queries += queries
            self.preempted_hits += hits
        else:
            self.queries += queries
            self.hits += hits
