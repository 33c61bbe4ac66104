"""The one description of a step's rows that goes through model, layer and op."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import torch

from milepost.ops.chunks import Segment, cut
from milepost.specs import BLOCK_SIZE


@dataclass(frozen=True, slots=True)
class KVLayer:
    """Paged keys and values of one attention layer: each [num_blocks, BLOCK_SIZE, num_kv_heads, head_dim]."""

    k: torch.Tensor
    v: torch.Tensor


@dataclass(frozen=True, slots=True)
class RecurrentLayer:
    """Recurrent buffers of one layer by name: `checkpoint[name]` [num_slots, *shape] and `window[name]`
    [num_windows, *shape].

    Checkpoint slot 0 is the state of the empty prefix: zeros, never written.
    """

    checkpoint: Mapping[str, torch.Tensor]
    window: Mapping[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows `[start, end)` of one sequence and where its states are.

    block_table  the blocks that hold its KV from token 0 on
    state_slot   the checkpoint of the last grid point at or below `start`
    window_slot  its window: rows from that grid point to `start` (nothing is read there when `start` is a grid point)
    grid_slots   for each grid point in (start, end], in order, the checkpoint slot to write, or -1: not wanted. The
                 last one is wanted whenever the sequence goes on.
    """

    start: int
    end: int
    block_table: Sequence[int] = ()
    state_slot: int = 0
    window_slot: int = 0
    grid_slots: Sequence[int] = ()


@dataclass(frozen=True)
class ForwardBatch:
    """New rows of S sequences, packed one sequence after another: sequence s owns rows `query_start_loc[s]` to
    `query_start_loc[s + 1]`. A prefill brings many rows, a decode one; no op may tell them apart.

    positions        int64 [rows]      place of each row in its sequence, from 0
    query_start_loc  int32 [S + 1]     first row of each sequence, then the number of rows
    seq_lens         int32 [S]         tokens of each sequence once these rows are in: what attention reads
    block_tables     int32 [S, max]    KV block of each 16 tokens, padded with 0
    slot_mapping     int64 [rows]      where each row's KV goes: block * 16 + place in the block
    kv               per layer         its paged KV, or None for a layer that has none
    state_slots      int32 [S]         checkpoint of the last grid point at or below each sequence's first row
    window_slots     int32 [S]         window of each sequence
    grid_slots       int32 [G]         checkpoint slot to write (or -1) for each grid point that a sequence's rows
                                       reach, packed like the rows: sequence s owns `grid_starts[s]` to
                                       `grid_starts[s + 1]`
    grid_starts      int32 [S + 1]
    recurrent        per layer         its recurrent buffers, or None for a layer that has none
    longest          int32 [S]         what seq_lens may grow to while these tensors are used again
                                       (`ops/recording.py`); None: they are used once
    """

    positions: torch.Tensor
    query_start_loc: torch.Tensor
    seq_lens: torch.Tensor
    block_tables: torch.Tensor
    slot_mapping: torch.Tensor
    kv: Sequence[KVLayer | None]
    state_slots: torch.Tensor
    window_slots: torch.Tensor
    grid_slots: torch.Tensor
    grid_starts: torch.Tensor
    recurrent: Sequence[RecurrentLayer | None]
    longest: torch.Tensor | None = None

    @staticmethod
    def pack(
        rows: Sequence[Rows],
        kv: Sequence[KVLayer | None],
        recurrent: Sequence[RecurrentLayer | None] = (),
        device: torch.device | str = "cpu",
    ) -> ForwardBatch:
        """The batch of `rows`, in that order. Every block table must reach its `end`."""

        def int32(values: list[int]) -> torch.Tensor:
            return torch.tensor(values, dtype=torch.int32, device=device)

        widest = max((len(r.block_table) for r in rows), default=0)
        tables = torch.zeros(len(rows), max(widest, 1), dtype=torch.int32)
        positions, slots, starts = [], [], [0]
        for i, r in enumerate(rows):
            tables[i, : len(r.block_table)] = torch.tensor(r.block_table, dtype=torch.int32)
            place = torch.arange(r.start, r.end)
            positions.append(place)
            slots.append(tables[i].long()[place // BLOCK_SIZE] * BLOCK_SIZE + place % BLOCK_SIZE)
            starts.append(starts[-1] + r.end - r.start)
        empty = torch.zeros(0, dtype=torch.int64)
        return ForwardBatch(
            positions=torch.cat(positions or [empty]).to(device),
            query_start_loc=int32(starts),
            seq_lens=int32([r.end for r in rows]),
            block_tables=tables.to(device),
            slot_mapping=torch.cat(slots or [empty]).to(device),
            kv=kv,
            state_slots=int32([r.state_slot for r in rows]),
            window_slots=int32([r.window_slot for r in rows]),
            grid_slots=int32([slot for r in rows for slot in r.grid_slots]),
            grid_starts=int32([0, *accumulate(len(r.grid_slots) for r in rows)]),
            recurrent=recurrent,
        )

    @cached_property
    def segments(self) -> tuple[Segment, ...]:
        """The rows cut at sequences and grid points, in the order of the rows; a sequence without rows has none.

        ValueError if a sequence brings another number of grid slots than its rows reach grid points, or names slot 0.
        """
        return tuple(self._cut())

    @cached_property
    def segment_table(self) -> torch.Tensor:
        """The same for kernels, int64 [segments, 6]: first row, offset, end, state_slot or -1, window_slot, grid_slot
        or -1. A sequence begins where a state_slot is named."""
        rows = [(s.rows.start, s.offset, s.end, s.state_slot, s.window_slot, s.grid_slot) for s in self.segments]
        return torch.tensor([[-1 if x is None else x for x in row] for row in rows], dtype=torch.int64).view(-1, 6)

    def _cut(self) -> Iterator[Segment]:
        starts, lens = self.query_start_loc.tolist(), self.seq_lens.tolist()
        states, windows = self.state_slots.tolist(), self.window_slots.tolist()
        grid_slots, grid_starts = self.grid_slots.tolist(), self.grid_starts.tolist()
        for s, end in enumerate(lens):
            start, wanted = end - (starts[s + 1] - starts[s]), grid_slots[grid_starts[s] : grid_starts[s + 1]]
            yield from cut(start, end, starts[s], states[s], windows[s], wanted)
