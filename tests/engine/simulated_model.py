"""A model that can tell whose rows and states it reads: everything that it stores is a hash of scope and exact history.

The row of a token is a hash of the scope and all tokens up to it. It is what a KV block holds at that place; the
recurrent state at a grid point is the row before it; a window holds the tokens since then, or, if it is not cuttable,
the last row in place of them. So a stale slot, a swapped
block, a wrong position, a lost window or a crossed scope is a wrong number, and either raises or changes a token.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from collections.abc import Sequence as Many
from zlib import crc32

from milepost.engine.scheduler import Piece
from milepost.request import Sequence
from milepost.specs import BLOCK_SIZE, CHUNK

NOT_A_NUMBER = -1
"""The row of a sequence that is not sound any more, and all that comes of it."""


class SimulationError(AssertionError):
    """The simulated engine saw something that must never happen."""


def expect(truth: bool, message: str) -> None:
    if not truth:
        raise SimulationError(message)


def row_before(scope: str) -> int:
    return crc32(scope.encode())


def row_after(row: int, token: int) -> int:
    return NOT_A_NUMBER if row < 0 else (row * 6364136223846793005 + token + 1442695040888963407) % 2**64


def next_token(row: int, index: int, vocab_size: int) -> int:
    return ((row >> 33) + 7919 * index) % vocab_size


class SimulatedModel:
    """Memory of all that the cache gives out by number, and steps over it. Starts as garbage, and is never cleared."""

    def __init__(self, num_blocks: int, num_slots: int, num_windows: int, rng: random.Random, cuttable: bool) -> None:
        """`num_blocks` 0: a model without KV; `num_slots` 1: one without states."""
        self.has_kv, self.has_states = num_blocks > 0, num_slots > 1
        self._rng, self._cuttable = rng, cuttable
        self._blocks = [[self._garbage()] * BLOCK_SIZE for _ in range(num_blocks)]
        self._states = [0, *(self._garbage() for _ in range(num_slots - 1))]
        self._windows = [[self._garbage()] * (CHUNK - 1) for _ in range(num_windows)]
        self._rows: dict[Sequence, list[int]] = {}

    def lose(self, blocks: Many[int], slots: Many[int]) -> None:
        """Their pages were given back."""
        for block in blocks:
            self._blocks[block] = [self._garbage()] * BLOCK_SIZE
        for slot in slots:
            self._states[slot] = self._garbage()

    def run(self, pieces: Iterable[Piece], bad_rows: dict[Sequence, int]) -> dict[Sequence, int]:
        """Reads and writes the rows of all pieces, in any order; returns the last row of each that samples. A sequence
        in `bad_rows` is not sound from that row on."""
        pieces = list(pieces)
        self._rng.shuffle(pieces)
        self._check_slots(pieces)
        self._copy(pieces)
        sampled = {}
        for piece in pieces:
            row = self._run(piece, bad_rows.get(piece.seq))
            if piece.samples:
                sampled[piece.seq] = row
        return sampled

    def forget(self, seq: Sequence) -> None:
        self._rows.pop(seq, None)

    def _garbage(self) -> int:
        return self._rng.getrandbits(60)

    def _check_slots(self, pieces: list[Piece]) -> None:
        """In a step no slot is written twice, nor written where one is read."""
        written = [slot for piece in pieces for slot in piece.seq.grid_slots if slot != -1]
        read = {piece.seq.state_slot for piece in pieces}
        expect(len(set(written)) == len(written), "a slot is written twice in a step")
        expect(not read & set(written) and 0 not in written, "a state is written that somebody reads")

    def _copy(self, pieces: list[Piece]) -> None:
        """Before a row is written, what resumes between grid points gets what it goes on from."""
        for piece in pieces:
            copies, seq = piece.seq.copies, piece.seq
            if copies is None:
                continue
            self._windows[seq.window_slot] = list(self._windows[copies.window_slot])
            if copies.block is not None:
                self._blocks[seq.block_table[piece.start // BLOCK_SIZE]] = list(self._blocks[copies.block])

    def _run(self, piece: Piece, bad_row: int | None) -> int:
        seq, start, end = piece.seq, piece.start, piece.end
        expect(start == seq.num_computed, "a piece does not start where the computed rows end")
        expect(end <= len(seq.block_table) * BLOCK_SIZE, "a piece has rows without a block")
        row = self._read(seq, start)
        num_points = end // CHUNK - start // CHUNK if self.has_states else 0
        expect(len(seq.grid_slots) == num_points, "the grid slots are not those of the grid points")
        slots = iter(seq.grid_slots)
        for place in range(start, end):
            row = row_after(row, seq.tokens[place])
            if place == bad_row:
                row = NOT_A_NUMBER
            if self.has_kv:
                self._blocks[seq.block_table[place // BLOCK_SIZE]][place % BLOCK_SIZE] = row
            if self.has_states and (place + 1) % CHUNK:
                place_in_window, value = (place % CHUNK, seq.tokens[place]) if self._cuttable else (0, row)
                self._windows[seq.window_slot][place_in_window] = value
            elif self.has_states:
                slot = next(slots)
                expect(slot > 0 or place + CHUNK < end, "the last state of a piece is not kept")
                if slot > 0:
                    self._states[slot] = row
        return row

    def _read(self, seq: Sequence, start: int) -> int:
        """Compares what the sequence's blocks, state and window hold with what its own tokens say; returns the row
        before `start`, as read."""
        rows = self._expected(seq, start)
        name = f"{seq.request_id} of {seq.num_tokens} tokens"
        if self.has_kv:
            for first in range(0, start, BLOCK_SIZE):
                stored = self._blocks[seq.block_table[first // BLOCK_SIZE]]
                right = rows[first : min(first + BLOCK_SIZE, start)]
                if stored[: len(right)] != right:
                    raise SimulationError(f"{name} reads wrong rows from {first} on")
        if not self.has_states:
            expect(start <= 0 or self.has_kv, f"{name} resumes from nothing")
            return (
                self._blocks[seq.block_table[(start - 1) // BLOCK_SIZE]][(start - 1) % BLOCK_SIZE]
                if start
                else (row_before(seq.cache_salt))
            )
        row = self._states[seq.state_slot] or row_before(seq.cache_salt)
        if not self._cuttable and start % CHUNK:
            row = self._windows[seq.window_slot][0]
        for token in self._windows[seq.window_slot][: start % CHUNK] if self._cuttable else ():
            row = row_after(row, token)
        right_row = rows[start - 1] if start else row_before(seq.cache_salt)
        expect(row == right_row, f"{name} resumes at {start} from a wrong state or window")
        return row

    def _expected(self, seq: Sequence, count: int) -> list[int]:
        rows = self._rows.setdefault(seq, [])
        while len(rows) < count:
            rows.append(row_after(rows[-1] if rows else row_before(seq.cache_salt), seq.tokens[len(rows)]))
        return rows
