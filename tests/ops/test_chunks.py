"""The walk over segments."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from milepost.ops import ForwardBatch, Rows
from milepost.ops.chunks import Segment
from milepost.specs import CHUNK


def walk(*rows: Rows) -> list[Segment]:
    return list(ForwardBatch.pack(rows, []).segments)


def piece(start: int, end: int, state_slot: int, window_slot: int, grid_slots: list[int]) -> Rows:
    return Rows(start, end, [0] * (-(-end // 16)), state_slot, window_slot, grid_slots)


def test_pieces_are_cut_at_grid_points() -> None:
    found = walk(piece(130, 200, 3, 5, [8]), piece(64, 64, 1, 2, []), piece(0, 192, 0, 4, [6, -1, 9]))
    assert found == [
        Segment(slice(0, 62), 2, 64, state_slot=3, window_slot=5, grid_slot=8),
        Segment(slice(62, 70), 0, 8, state_slot=None, window_slot=5, grid_slot=None),
        Segment(slice(70, 134), 0, 64, state_slot=0, window_slot=4, grid_slot=6),
        Segment(slice(134, 198), 0, 64, state_slot=None, window_slot=4, grid_slot=None),
        Segment(slice(198, 262), 0, 64, state_slot=None, window_slot=4, grid_slot=9),
    ]
    assert [s.reaches_grid for s in found] == [True, False, True, True, True]


@given(st.lists(st.tuples(st.integers(0, 300), st.integers(0, 300)), max_size=6))
def test_segments_tile_the_rows_and_name_each_slot_once(pieces: list[tuple[int, int]]) -> None:
    rows, fresh = [], iter(range(1, 100))
    for s, (start, count) in enumerate(pieces):
        points = (start + count) // CHUNK - start // CHUNK
        rows.append(piece(start, start + count, 100 + s, s, [next(fresh) for _ in range(points)]))
    found = walk(*rows)
    assert [s.grid_slot for s in found if s.reaches_grid] == [slot for r in rows for slot in r.grid_slots]
    places = [(r.start + i, r.window_slot) for r in rows for i in range(r.end - r.start)]
    covered = [(row, s.offset + i, s) for s in found for i, row in enumerate(range(s.rows.start, s.rows.stop))]
    assert [row for row, _, _ in covered] == list(range(len(places)))
    for (position, window), (_, offset, segment) in zip(places, covered, strict=True):
        assert (position % CHUNK, window) == (offset, segment.window_slot)
        assert offset < segment.end <= CHUNK
    for before, after in pairwise([None, *found]):
        carries = before is not None and before.window_slot == after.window_slot
        assert after.state_slot == (None if carries else 100 + after.window_slot)


@pytest.mark.parametrize(
    ("start", "end", "slots"), [(0, 63, [1]), (0, 64, []), (0, 128, [1]), (60, 70, [1, 2]), (0, 64, [0])]
)
def test_grid_slots_that_do_not_fit_the_rows_are_refused(start: int, end: int, slots: list[int]) -> None:
    with pytest.raises(ValueError, match="grid slots"):
        walk(piece(start, end, 0, 0, slots))
