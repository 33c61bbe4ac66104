"""Grid, checkpoint and window: how the recurrent ops cut a sequence, and what they keep of it.

A recurrent layer has one state for everything it has read. Storing it after each token would cost too much, so
positions carry a **grid** of one point every CHUNK = 64 tokens, counted from the sequence's first token, and states are
stored only there. A sequence of which 130 tokens are read and 70 come now:

    position     0               64              128 130           192  200
                 |...............|...............|...|=============|====|
    grid point   0               1               2    new rows     3
    checkpoint   slot 0          slot 7          slot 3            slot 8
                 zeros           of no use now   start from here   to be written
    window                                       |...|
                                                 k, u and log decays of rows 128 and 129

- A **checkpoint** is the state after all tokens before a grid point: one slot of the `state` buffer. It is written
  once, when a row reaches the grid point, into a slot the batch names (or nowhere, if nobody wants it: -1), and never
  changed after that: whoever shares the prefix may start from it. Slot 0 is the state before the first token, zeros.
- A **window** belongs to one running sequence: the inputs of the rows since the last grid point, the row at position p
  in entry `p % CHUNK`. A row's output is a function of the checkpoint and of its own chunk's inputs, by one formula
  whether the rows came one at a time or all at once. Once rows have run, the window holds those of the chunk that is
  not full yet; at a grid point it is void. A token-by-token recurrence keeps its last state in place of inputs; a
  convolution keeps the few inputs before the grid point as well.
- Slots and windows are recycled without being cleared: whatever a sequence has not written since its last grid
  point may hold anything, NaN included, and is left out by slicing or selecting, never by multiplying with zero.

A **piece** is what one batch brings of a sequence; grid points cut it into **segments**, each within one chunk. All ops
walk them with `ForwardBatch.segments`, in order, carrying the state from one to the next:

    piece [130, 200):   segment [130, 192), offset 2, end 64: starts from slot 3 and the window, writes slot 8
                        segment [192, 200), offset 0, end 8: starts from the state that the first has left behind
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from milepost.specs import CHUNK


@dataclass(frozen=True, slots=True)
class Segment:
    """New rows of one sequence that lie in one chunk.

    rows         their place in the packed batch
    offset, end  their places in the chunk, end excluded: CHUNK when they reach the grid point
    state_slot   checkpoint at the chunk's start; None: the state that the segment before has carried here
    window_slot  the sequence's window
    grid_slot    checkpoint to write with the state at the chunk's end; None: no grid point reached, or not wanted
    """

    rows: slice
    offset: int
    end: int
    state_slot: int | None
    window_slot: int
    grid_slot: int | None

    @property
    def reaches_grid(self) -> bool:
        return self.end == CHUNK


def cut(
    start: int, end: int, row: int, state_slot: int, window_slot: int, grid_slots: Sequence[int]
) -> Iterator[Segment]:
    """Rows [start, end) of one sequence, the first of them `row` in the batch, cut at grid points, in order.

    ValueError if `grid_slots` are not as many as the rows reach grid points, or name slot 0.
    """
    if len(grid_slots) != end // CHUNK - start // CHUNK or 0 in grid_slots:
        raise ValueError(f"rows {start} to {end} cannot use the grid slots {list(grid_slots)}")
    slots, first = iter(grid_slots), True
    while start < end:
        offset = start % CHUNK
        stop = min(CHUNK, offset + end - start)
        count = stop - offset
        slot = next(slots) if stop == CHUNK else -1
        yield Segment(
            rows=slice(row, row + count),
            offset=offset,
            end=stop,
            state_slot=state_slot if first else None,
            window_slot=window_slot,
            grid_slot=slot if slot > 0 else None,
        )
        row, start, first = row + count, start + count, False
