"""Reading sequences piece by piece, alone or packed with others, in memory whose unwritten places are NaN."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from milepost.models.base import Model
from milepost.ops import ForwardBatch, KVLayer, RecurrentLayer, Rows
from milepost.specs import BLOCK_SIZE, CHUNK, Buffer, LayerSpec, PagedKV, Recurrent

NAN = float("nan")


@dataclass
class Running:
    """A sequence: tokens read, KV blocks, its window, and the checkpoint slot of each grid point reached (0: none)."""

    window: int
    num_tokens: int = 0
    blocks: list[int] = field(default_factory=list)
    states: list[int] = field(default_factory=lambda: [0])


class Reader:
    """A model and the states of its sequences, which go by names."""

    def __init__(self, model: Model, max_tokens: int = 1024, max_sequences: int = 8) -> None:
        self.model, self.running = model, dict[str, Running]()
        shuffled = torch.Generator().manual_seed(0)
        self.free_blocks = torch.randperm(max_tokens // BLOCK_SIZE, generator=shuffled).tolist()
        self.free_slots = (torch.randperm(max_tokens // CHUNK, generator=shuffled) + 1).tolist()
        self.free_windows = list(range(max_sequences))
        sizes = (len(self.free_blocks), len(self.free_slots) + 1, max_sequences)
        specs = model.layer_specs()
        self.kv = [_kv(layer, sizes[0], model.dtype) for layer in specs]
        self.recurrent = [_recurrent(layer, *sizes[1:], model.dtype) for layer in specs]

    @torch.inference_mode()
    def read(self, pieces: Mapping[str, Sequence[int]]) -> dict[str, torch.Tensor]:
        """Reads the next tokens of each sequence, all in one batch; returns each piece's logits [tokens, vocab]."""
        rows = [self._rows(name, len(tokens)) for name, tokens in pieces.items()]
        batch = ForwardBatch.pack(rows, self.kv, self.recurrent)
        packed = torch.tensor([token for tokens in pieces.values() for token in tokens])
        logits = self.model.logits(self.model(packed, batch))
        return dict(zip(pieces, logits.split([len(tokens) for tokens in pieces.values()]), strict=True))

    def greedy(self, name: str, prompt: Sequence[int], num_tokens: int) -> list[int]:
        """The most likely tokens after the prompt, each read as soon as it is chosen."""
        tokens = [int(self.read({name: prompt})[name][-1].argmax())]
        while len(tokens) < num_tokens:
            tokens.append(int(self.read({name: tokens[-1:]})[name][-1].argmax()))
        return tokens

    def resume(self, name: str, of: str) -> int:
        """Starts a sequence from the last grid point of another, which ends; returns how many tokens it has already."""
        old = self.running.pop(of)
        points = old.num_tokens // CHUNK
        kept = points * CHUNK // BLOCK_SIZE
        self.running[name] = Running(
            self.free_windows.pop(0), points * CHUNK, old.blocks[:kept], old.states[: points + 1]
        )
        for layer in self.recurrent:
            for buffer in layer.window.values() if layer else ():
                buffer[old.window] = NAN
        for layer in self.kv:
            if layer is not None:
                layer.k[old.blocks[kept:]], layer.v[old.blocks[kept:]] = NAN, NAN
        self.free_windows.append(old.window)
        self.free_blocks += old.blocks[kept:]
        return points * CHUNK

    def _rows(self, name: str, num_tokens: int) -> Rows:
        """The next rows of a sequence, with memory for them."""
        if name not in self.running:
            self.running[name] = Running(self.free_windows.pop(0))
        one = self.running[name]
        start, end = one.num_tokens, one.num_tokens + num_tokens
        state = one.states[start // CHUNK]
        grid_slots = [self.free_slots.pop() for _ in range(end // CHUNK - start // CHUNK)]
        one.blocks += [self.free_blocks.pop() for _ in range(-(-end // BLOCK_SIZE) - len(one.blocks))]
        one.states += grid_slots
        one.num_tokens = end
        return Rows(start, end, one.blocks, state, one.window, grid_slots)


def _kv(layer: tuple[LayerSpec, ...], num_blocks: int, dtype: torch.dtype) -> KVLayer | None:
    for spec in layer:
        if isinstance(spec, PagedKV):
            shape = (num_blocks, BLOCK_SIZE, spec.num_kv_heads, spec.head_dim)
            return KVLayer(torch.full(shape, NAN, dtype=dtype), torch.full(shape, NAN, dtype=dtype))
    return None


def _recurrent(
    layer: tuple[LayerSpec, ...], num_slots: int, num_windows: int, dtype: torch.dtype
) -> RecurrentLayer | None:
    specs = [spec for spec in layer if isinstance(spec, Recurrent)]
    if not specs:
        return None
    checkpoint = _buffers([buffer for spec in specs for buffer in spec.checkpoint], num_slots, dtype)
    for tensor in checkpoint.values():
        tensor[0] = 0
    window = _buffers([buffer for spec in specs for buffer in spec.window], num_windows, dtype)
    return RecurrentLayer(checkpoint, window)


def _buffers(buffers: list[Buffer], count: int, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Full of NaN; `wide` ones in fp32, the others in the model's dtype."""
    return {
        buffer.name: torch.full((count, *buffer.shape), NAN, dtype=torch.float32 if buffer.wide else dtype)
        for buffer in buffers
    }
