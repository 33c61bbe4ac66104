"""Who holds which recurrent state: numbers of checkpoint slots and of windows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence as Many

from milepost.cache.block_pool import IntegrityError
from milepost.request import Sequence
from milepost.specs import CHUNK


class StateSlots:
    """Slots for `num_seqs` running sequences: one window each, and two checkpoints, since the state at the next grid
    point is written while the one before it is still read. Slot 0 is the state of the empty prefix and nobody's.

        rows          0 ........ 64 ........ 128 .. num_computed ...... 192 .. end of the step
        state_slot                            ^ read by the step          ^ written by it: grid_slots[-1]
        window_slot                           |----- its rows -----|
    """

    def __init__(self, num_seqs: int) -> None:
        self.num_seqs = num_seqs
        self._free_windows = list(reversed(range(num_seqs)))
        self._free_slots = list(reversed(range(1, num_slots(num_seqs))))

    def admit(self, seq: Sequence) -> None:
        """Starts `seq` at the empty prefix. IntegrityError if more than `num_seqs` would hold a window."""
        if not self._free_windows:
            raise IntegrityError(f"{seq.request_id} finds no window among {self.num_seqs}")
        seq.window_slot = self._free_windows.pop()
        seq.state_slot = 0

    def grow(self, seq: Sequence, num_tokens: int) -> None:
        """Says where rows [num_computed, num_tokens) write the states of the grid points that they reach: only the
        last one is kept."""
        num_points = num_tokens // CHUNK - seq.num_computed // CHUNK
        if num_points:
            last = seq.grid_slots[-1] if seq.grid_slots else self._free_slots.pop()
            seq.grid_slots = [-1] * (num_points - 1) + [last]

    def advance(self, seq: Sequence) -> None:
        """The rows that `grow` was told of have run: the last state written is the one to go on from."""
        if seq.grid_slots:
            self._give_back(seq.state_slot)
            seq.state_slot = seq.grid_slots[-1]
            seq.grid_slots = []

    def release(self, seq: Sequence) -> None:
        """Takes back all that `seq` holds."""
        for slot in (seq.state_slot, *seq.grid_slots):
            self._give_back(slot)
        self._free_windows.append(seq.window_slot)
        seq.state_slot, seq.grid_slots = 0, []

    def check(self, sequences: Many[Sequence]) -> None:
        """IntegrityError unless each slot and window is free once or held by one of `sequences` (all that hold any)."""
        windows = Counter([*self._free_windows, *(seq.window_slot for seq in sequences)])
        held = [slot for seq in sequences for slot in (seq.state_slot, *seq.grid_slots) if slot > 0]
        slots = Counter([*self._free_slots, *held])
        if windows != Counter(range(self.num_seqs)) or slots != Counter(range(1, num_slots(self.num_seqs))):
            raise IntegrityError(f"windows {windows}, checkpoint slots {slots}: each must be held or free once")

    def _give_back(self, slot: int) -> None:
        if slot > 0:
            self._free_slots.append(slot)


def num_slots(num_seqs: int) -> int:
    """Checkpoint slots that `num_seqs` running sequences need, slot 0 included."""
    return 1 + 2 * num_seqs
