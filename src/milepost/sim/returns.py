"""What comes back in a trace: of each prompt the part that an earlier one began with too, and who had it last."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from milepost.sim.play import playable
from milepost.sim.trace import Trace
from milepost.specs import BLOCK_SIZE, CHUNK

Numbers = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Returns:
    """A row stands for neighbouring blocks of one prompt that the same request visited last. Ids are chained, so a
    prompt's deeper rows have older visits; most prompts have one or two rows.

    request  whose prompt it is; rows are in this order, then by `depth`
    source   the request that visited the row's blocks last
    depth    tokens of the prompt up to the row's end
    unit     tokens: what is resumed is a multiple of it
    """

    num_requests: int
    input_tokens: int
    unit: int
    request: Numbers
    source: Numbers
    depth: Numbers


def returns_of(trace: Trace, *, states: bool = True) -> Returns:
    """One walk through `trace`. `states`: whether the model has recurrent states, so that only whole blocks can be
    resumed. The last token of a prompt is always computed."""
    trace = playable(trace)
    unit = trace.block_size if states else trace.block_size * BLOCK_SIZE // CHUNK
    visits: dict[str, dict[int, int]] = {}
    rows: list[tuple[int, int, int]] = []
    num_requests = input_tokens = 0
    for number, request in enumerate(trace):
        last, blocks = visits.setdefault(request.scope, {}), request.blocks.tolist()
        limit = max(request.input_length - 1, 0) // unit * unit
        rows += ((number, source, depth) for source, depth in _rows(blocks, last, trace.block_size, limit))
        last.update(dict.fromkeys(request.all_blocks.tolist(), number))
        num_requests, input_tokens = number + 1, input_tokens + request.input_length
    request_of, source_of, depth_of = np.array(rows, np.int64).reshape(-1, 3).T.copy()
    return Returns(num_requests, input_tokens, unit, request_of, source_of, depth_of)


def _rows(blocks: list[int], last: dict[int, int], block_size: int, limit: int) -> Iterator[tuple[int, int]]:
    """(source, depth) of each row, down to `limit` tokens."""
    start = 0
    while start < len(blocks) and start * block_size < limit:
        source = last.get(blocks[start])
        if source is None:
            return
        start = bisect_right(blocks, -source, start, key=lambda block: -last.get(block, -1))
        yield source, min(start * block_size, limit)
