"""The scheduler's steps without a model: what a step runs counts as computed when it is over."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from milepost.cache.prefix_cache import PrefixCache
from milepost.engine.scheduler import Scheduler
from milepost.request import Sequence


def rehearse(
    cache: PrefixCache,
    sequences: Iterable[Sequence],
    answer: Callable[[Sequence], None] = lambda seq: None,
    *,
    max_num_seqs: int,
    max_num_batched_tokens: int,
    num_clients: int | None = None,
) -> Iterator[Sequence]:
    """Serves `sequences` to their last token, lets `answer` lengthen them, and goes on to what is then the last; yields
    each as it ends. `num_clients` are in line or run at once (None: as many as can run): the next one comes when one
    of them is through.

    `Sequence.num_cached_tokens` then says what was resumed. RequestError for one that does not fit the whole cache.
    """
    scheduler = Scheduler(cache, max_num_batched_tokens=max_num_batched_tokens, max_num_seqs=max_num_seqs)
    coming = iter(sequences)
    for seq in islice(coming, num_clients or max_num_seqs):
        scheduler.add(seq)
    num_steps = 0
    answered: set[Sequence] = set()
    while scheduler.has_work:
        step = scheduler.schedule(float(num_steps))
        num_steps += 1
        scheduler.advance(step)
        ended = list(step.finished)
        for seq in (piece.seq for piece in step.pieces if piece.samples):
            if seq not in answered:
                answered.add(seq)
                answer(seq)
            if seq.num_computed == seq.num_tokens:
                scheduler.finish(seq, "stop")
                ended.append(seq)
        for seq in ended:
            answered.discard(seq)
            yield seq
            for following in islice(coming, 1):
                scheduler.add(following)
