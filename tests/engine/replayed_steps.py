"""The same steps run twice, as they come and with recordings, in two memories: logits and states must be equal."""

from __future__ import annotations

import random
from collections.abc import Sequence as Many
from typing import Any

import torch

from milepost.engine.pools import Pools, allocate_pools
from milepost.engine.replay import Replays, Rows
from milepost.engine.runner import Runner
from milepost.engine.scheduler import Piece
from milepost.models.base import Model
from milepost.request import Sequence
from milepost.sampling_params import SamplingParams
from milepost.specs import BLOCK_SIZE, CHUNK

NAN = float("nan")


class Watched(Replays):
    """Notes of each step whether it was replayed."""

    def __init__(self, model: Model, pools: Pools, max_model_len: int) -> None:
        super().__init__(model, pools, max_model_len)
        self.replayed: list[bool] = []

    def run(self, pieces: Many[Piece]) -> Rows | None:
        self.replayed.append(False)
        found = super().run(pieces)
        self.replayed[-1] = found is not None
        return found

    def num_recordings(self) -> int:
        return len(self._recordings)

    def arena_bytes(self) -> int:
        return sum(chunk.numel() for chunk in self._arena._chunks)

    def held_bytes(self) -> int:
        """Memory that recordings alone keep: beyond the arena, the model and the pools."""
        known = {x.untyped_storage().data_ptr() for x in (*self._arena._chunks, *self._inputs_held(), *self._weights())}
        kept = (x.untyped_storage() for recording in self._recordings.values() for x in recording.kept)
        sizes = {storage.data_ptr(): storage.nbytes() for storage in kept}
        return sum(size for address, size in sizes.items() if address not in known)

    def _inputs_held(self) -> list[torch.Tensor]:
        assert self._inputs is not None
        return [x for x in vars(self._inputs).values() if isinstance(x, torch.Tensor)]

    def _weights(self) -> list[torch.Tensor]:
        pools = [
            x for layer in self.pools.recurrent if layer for x in (*layer.checkpoint.values(), *layer.window.values())
        ]
        return [*self.model.parameters(), *pools]


class Noting:
    """In the sampler's place: keeps a copy of the logits, and draws nothing."""

    def __init__(self) -> None:
        self.logits = torch.empty(0)

    def sample(self, logits: torch.Tensor, seqs: Many[Sequence]) -> list[None]:
        self.logits = logits.clone()
        return [None] * len(seqs)


class Twice:
    """A model in two runners with equal memory, NaN where nothing was written, and sequences that both read."""

    def __init__(self, model: Model, max_model_len: int = 512, max_seqs: int = 6, seed: int = 0) -> None:
        self.model, self.rng = model, random.Random(seed)
        specs = model.layer_specs()
        num_blocks, num_slots = max_seqs * -(-max_model_len // BLOCK_SIZE), 2 * max_seqs + 1
        device = torch.device("cpu")
        pools = [allocate_pools(specs, num_blocks, num_slots, max_seqs, model.dtype, device) for _ in range(2)]
        for tensors in map(tensors_of, pools):
            for tensor in tensors:
                tensor.fill_(NAN)
        for layer in (layer for one in pools for layer in one.recurrent if layer is not None):
            for tensor in layer.checkpoint.values():
                tensor[0] = 0
        self.pools = pools
        self.replays = Watched(model, pools[1], max_model_len)
        self.samplers = Noting(), Noting()
        self.runners = [
            Runner(model, one, sampler, None, replays)  # type: ignore[arg-type]
            for one, sampler, replays in zip(pools, self.samplers, (None, self.replays), strict=True)
        ]
        self.has_kv = any(layer is not None for layer in pools[0].kv)
        self.has_states = any(layer is not None for layer in pools[0].recurrent)
        self.free_blocks, self.free_slots = list(range(1, num_blocks)), list(range(1, num_slots))
        self.free_windows = list(range(max_seqs))
        for free in (self.free_blocks, self.free_slots, self.free_windows):
            self.rng.shuffle(free)

    def start(self, num_tokens: int) -> Sequence:
        """A sequence that has read its first `num_tokens` tokens, and has one more to read."""
        params = SamplingParams(max_tokens=1000)
        seq = Sequence("", [self._token() for _ in range(num_tokens)], num_tokens, params)
        seq.window_slot = self.free_windows.pop()
        self.step([seq])
        return seq

    def end(self, seq: Sequence) -> None:
        """What it had is free, and next to be given away."""
        self.free_blocks += seq.block_table if self.has_kv else []
        self.free_slots += [seq.state_slot] if seq.state_slot else []
        self.free_windows.append(seq.window_slot)

    def step(self, seqs: Many[Sequence], unwanted: Many[Sequence] = ()) -> bool:
        """Each reads all that it has not read, of which both must make the same; then it has a new token. Those
        `unwanted` keep no state at the grid point that they reach. True if the step was replayed."""
        pieces = tuple(self._piece(seq, seq not in unwanted) for seq in seqs)
        for runner in self.runners:
            runner.run(pieces)
        for piece in pieces:
            self._advance(piece)
        first, second = (sampler.logits for sampler in self.samplers)
        assert first.shape == (len(seqs), self.model.vocab_size)
        assert first.isfinite().all()
        assert torch.equal(first, second), f"rows {(first != second).any(-1).nonzero().flatten().tolist()} differ"
        return self.replays.replayed[-1]

    def check_memory(self) -> None:
        """Keys, values, checkpoints and windows are the same, also where nothing was to be written."""
        for first, second in zip(*map(tensors_of, self.pools), strict=True):
            assert torch.equal(first.isnan(), second.isnan())
            assert torch.equal(first.nan_to_num(), second.nan_to_num())

    def _piece(self, seq: Sequence, wanted: bool) -> Piece:
        start, end = seq.num_computed, len(seq.tokens)
        for _ in range(-(-end // BLOCK_SIZE) - len(seq.block_table)):
            seq.block_table.append(self.free_blocks.pop() if self.has_kv else 0)
        points = end // CHUNK - start // CHUNK if self.has_states else 0
        seq.grid_slots = [-1] * points
        if points and wanted:
            seq.grid_slots[-1] = self.free_slots.pop()
        return Piece(seq, start, end)

    def _advance(self, piece: Piece) -> None:
        seq = piece.seq
        if seq.grid_slots and seq.grid_slots[-1] > 0:
            self.free_slots += [seq.state_slot] if seq.state_slot else []
            self.rng.shuffle(self.free_slots)
            seq.state_slot = seq.grid_slots[-1]
        seq.grid_slots = []
        seq.num_computed = piece.end
        seq.tokens.append(self._token())

    def _token(self) -> int:
        return self.rng.randrange(self.model.vocab_size)


def tensors_of(pools: Pools) -> list[torch.Tensor]:
    found: list[Any] = [x for layer in pools.kv if layer is not None for x in (layer.k, layer.v)]
    for layer in pools.recurrent:
        found += [] if layer is None else [*layer.checkpoint.values(), *layer.window.values()]
    return found
