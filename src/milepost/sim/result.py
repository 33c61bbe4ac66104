"""What a replay has seen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from milepost.sim.sizes import Sizes

Counts = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Requests:
    """Of each request of a trace, in its order: when it came, tokens of its prompt and of its answer, and `ceiling`,
    the tokens that it would have resumed with memory for everything and a state after each block."""

    time_ms: NDArray[np.float64]
    input_tokens: Counts
    output_tokens: Counts
    ceiling: Counts

    def __len__(self) -> int:
        return len(self.input_tokens)


@dataclass(frozen=True, slots=True)
class KindOfBytes:
    """Bytes of one kind that known prefixes took: at most, on average over the requests, and after each of
    `Result.sampled` requests."""

    peak: int
    mean: float
    sampled: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Result:
    """One policy on one trace with one budget.

    hits          tokens that each request resumed
    cut_short     requests longer than the memory holds: as much as fits was played, the rest computed and not kept
    bytes_by_kind "kv" and "state"
    sampled       numbers of requests after which bytes were taken, ascending
    evictions     by reason. "evicted": tokens of KV that made room; "thinned": states that went alone; "stranded":
                  states that went with their KV
    states_made, states_used   kept when they were made; of those, resumed from
    resumed_from, misses       requests by kind of state, and by what stood in their way, as the server counts them
    """

    trace: str
    policy: str
    limit_bytes: int
    sizes: Sizes
    block_size: int
    requests: Requests
    hits: Counts
    cut_short: int
    bytes_by_kind: Mapping[str, KindOfBytes]
    sampled: tuple[int, ...]
    evictions: Mapping[str, int]
    states_made: int
    states_used: int
    resumed_from: Mapping[str, int]
    misses: Mapping[str, int]

    @property
    def hit_rate(self) -> float:
        """Share of the prompts' tokens that were resumed."""
        return self.hit_rate_between(0.0, 1.0)

    @property
    def ceiling(self) -> float:
        """The hit rate of a cache without end."""
        total = int(self.requests.input_tokens.sum())
        return int(self.requests.ceiling.sum()) / total if total else 0.0

    @property
    def recomputed_tokens(self) -> int:
        """Tokens that were computed, though a cache without end would have had them."""
        return int((self.requests.ceiling - self.hits).sum())

    def hit_rate_between(self, start: float, end: float) -> float:
        """Of the requests from one share of their number to another, all others played too."""
        part = slice(int(len(self.hits) * start), int(len(self.hits) * end))
        total = int(self.requests.input_tokens[part].sum())
        return int(self.hits[part].sum()) / total if total else 0.0
