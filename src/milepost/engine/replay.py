"""Decode steps from recordings: what a step of so many rows called once, it calls again (`ops/recording.py`).

A step can be replayed if each of its sequences brings one row and wants one token, and no state would have to be
carried past a grid point that nobody keeps. Shapes are then given by the number of rows, so there is a recording for
each number, made when such steps have come a few times. All of them read their inputs from one set of tensors,
`_Inputs`, whose first rows the step fills in. Models whose ops are not all kernels of one compiled module are never
recorded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch

from milepost.engine.pools import Pools
from milepost.engine.scheduler import Piece
from milepost.models.base import Model
from milepost.ops import ForwardBatch, Ops, PackedWeight
from milepost.ops.cpu.kernels import Kernels
from milepost.ops.recording import Arena, Recording, record
from milepost.specs import BLOCK_SIZE, CHUNK

MAX_ROWS = 32
"""More rows keep the kernels busy for so long that calling them hardly counts."""

SEEN_BEFORE = 3
"""Steps of a number of rows that are run as they come before the next one is recorded: that takes the time of a few,
and some numbers are passed only on the way to others."""

Rows = tuple[torch.Tensor, torch.Tensor]
"""Hidden rows and their logits."""


class Replays:
    """Runs decode steps of one model over one set of pools. Results are valid until the next step."""

    def __init__(self, model: Model, pools: Pools, max_model_len: int) -> None:
        self.model, self.pools = model, pools
        self.kernels = _kernels_of(model)
        self._inputs = _Inputs(MAX_ROWS, max_model_len) if self.kernels else None
        self._has_states = any(layer is not None for layer in pools.recurrent)
        self._arena = Arena()
        self._recordings: dict[int, Recording[Rows]] = {}
        self._seen: Counter[int] = Counter()

    def run(self, pieces: Sequence[Piece]) -> Rows | None:
        """Hidden rows [rows, size] and logits fp32 [rows, vocab] of a step, or None if it is not replayed."""
        if self.kernels is None or self._inputs is None or not self._can_replay(pieces):
            return None
        num_rows = len(pieces)
        self._seen[num_rows] += 1
        if self._seen[num_rows] <= SEEN_BEFORE:
            return None
        self._inputs.fill(pieces)
        if num_rows in self._recordings:
            return self._recordings[num_rows].run()
        self._recordings[num_rows] = found = self._record(num_rows, self._inputs, self.kernels)
        return found.result

    def forget(self) -> None:
        """Records anew from now on."""
        self._recordings.clear()
        self._seen.clear()

    def _can_replay(self, pieces: Sequence[Piece]) -> bool:
        if not 0 < len(pieces) <= MAX_ROWS:
            return False
        return all(
            piece.end - piece.start == 1 and piece.samples and not (self._has_states and _loses_state(piece))
            for piece in pieces
        )

    def _record(self, num_rows: int, inputs: _Inputs, kernels: Kernels) -> Recording[Rows]:
        batch = inputs.batch(num_rows, self.pools)
        token_ids = inputs.token_ids[:num_rows]

        def run() -> Rows:
            hidden = self.model(token_ids, batch)
            return hidden, self.model.logits(hidden)

        return record(run, kernels, self._arena, _weights(self.model))


class _Inputs:
    """What steps of up to `num_rows` rows read, each row of its own sequence, at addresses that stay."""

    def __init__(self, num_rows: int, max_model_len: int) -> None:
        widest = -(-max_model_len // BLOCK_SIZE)
        self.token_ids = torch.zeros(num_rows, dtype=torch.int64)
        self.positions = torch.zeros(num_rows, dtype=torch.int64)
        self.slot_mapping = torch.zeros(num_rows, dtype=torch.int64)
        self.seq_lens = torch.ones(num_rows, dtype=torch.int32)
        self.longest = torch.full((num_rows,), max_model_len, dtype=torch.int32)
        self.starts = torch.arange(num_rows + 1, dtype=torch.int32)
        self.block_tables = torch.zeros(num_rows, widest, dtype=torch.int32)
        self.segment_table = torch.zeros(num_rows, 6, dtype=torch.int64)
        self._of_rows = [x.numpy() for x in (self.token_ids, self.positions, self.seq_lens, self.slot_mapping)]
        self._tables, self._segments = self.block_tables.numpy(), self.segment_table.numpy()
        self._known: list[list[int]] = [[] for _ in range(num_rows)]

    def fill(self, pieces: Sequence[Piece]) -> None:
        """Row i is that of `pieces[i]`."""
        rows, segments = [], []
        for i, piece in enumerate(pieces):
            seq, place = piece.seq, piece.start
            table = list(seq.block_table)
            if table != self._known[i]:
                self._tables[i, : len(table)] = table
                self._known[i] = table
            slot = table[place // BLOCK_SIZE] * BLOCK_SIZE + place % BLOCK_SIZE if table else 0
            rows.append((seq.tokens[place], place, place + 1, slot))
            offset = place % CHUNK
            grid_slot = _grid_slot(piece)
            segments.append((i, offset, offset + 1, seq.state_slot, seq.window_slot, grid_slot))
        count = len(pieces)
        for array, values in zip(self._of_rows, np.array(rows, dtype=np.int64).T, strict=True):
            array[:count] = values
        self._segments[:count] = segments

    def batch(self, num_rows: int, pools: Pools) -> ForwardBatch:
        """The batch of the first `num_rows` rows. Its grid points are in `segment_table` alone, which is all that
        kernels read."""
        none = torch.zeros(0, dtype=torch.int32)
        segments = self.segment_table[:num_rows]
        batch = ForwardBatch(
            positions=self.positions[:num_rows],
            query_start_loc=self.starts[: num_rows + 1],
            seq_lens=self.seq_lens[:num_rows],
            block_tables=self.block_tables[:num_rows],
            slot_mapping=self.slot_mapping[:num_rows],
            kv=pools.kv,
            state_slots=torch.zeros(num_rows, dtype=torch.int32),
            window_slots=torch.zeros(num_rows, dtype=torch.int32),
            grid_slots=none,
            grid_starts=none,
            recurrent=pools.recurrent,
            longest=self.longest[:num_rows],
        )
        vars(batch).update(segment_table=segments, segments=())
        return batch


def _grid_slot(piece: Piece) -> int:
    """The checkpoint that a row at the end of its chunk writes; -1: it is not at the end, or nobody wants it."""
    if piece.end % CHUNK or not piece.seq.grid_slots:
        return -1
    slot = piece.seq.grid_slots[0]
    return slot if slot > 0 else -1


def _loses_state(piece: Piece) -> bool:
    return piece.end % CHUNK == 0 and _grid_slot(piece) < 0


def _kernels_of(model: Model) -> Kernels | None:
    """What all of the model's ops are computed by."""
    found = {id(ops.kernels): ops.kernels for ops in _ops_of(model)}
    return next(iter(found.values())) if len(found) == 1 else None


def _ops_of(model: Model) -> list[Ops]:
    found = (getattr(module, "ops", None) for module in model.modules())
    return [ops for ops in found if isinstance(ops, Ops)]


def _weights(model: Model) -> list[torch.Tensor]:
    packed = [x for module in model.modules() for x in vars(module).values() if isinstance(x, PackedWeight)]
    return [*model.parameters(), *model.buffers(), *(weight.data for weight in packed)]
