"""What a layer remembers between steps, in words that the engine can add up without knowing the layer's kind."""

from __future__ import annotations

import math
from dataclasses import dataclass

BLOCK_SIZE = 16
"""Tokens per KV block; also the unit of the prefix cache's keys."""

CHUNK = 64
"""Tokens between grid points, where recurrent states can be stored and resumed; a multiple of BLOCK_SIZE."""


@dataclass(frozen=True, slots=True)
class PagedKV:
    """Keys and values of each token, in blocks: attention.

    `window` is the number of last tokens that a row can see (None: all). Blocks are kept whole either way.
    """

    num_kv_heads: int
    head_dim: int
    window: int | None = None

    def token_bytes(self, element_bytes: int) -> int:
        """Bytes that one token takes in this layer, K and V."""
        return 2 * self.num_kv_heads * self.head_dim * element_bytes


@dataclass(frozen=True, slots=True)
class Buffer:
    """One tensor of a recurrent state. `wide`: fp32 whatever the model's dtype (a state that is summed up), else the
    model's dtype (rows kept as they were)."""

    name: str
    shape: tuple[int, ...]
    wide: bool = True

    def num_bytes(self, element_bytes: int) -> int:
        return math.prod(self.shape) * (4 if self.wide else element_bytes)


@dataclass(frozen=True, slots=True)
class Recurrent:
    """A state that stands for the whole prefix: recurrences and convolutions.

    `checkpoint` buffers hold the state at a grid point; one slot of them is one checkpoint, never written twice while
    anyone may resume from it. `window` buffers hold what has come since the last grid point (at most CHUNK - 1 rows);
    one slot of them belongs to one running sequence. `cuttable`: the first rows of a window are a window too; not so
    where it keeps the last state in place of rows.
    """

    checkpoint: tuple[Buffer, ...]
    window: tuple[Buffer, ...]
    cuttable: bool = True

    def checkpoint_bytes(self, element_bytes: int) -> int:
        return sum(buffer.num_bytes(element_bytes) for buffer in self.checkpoint)

    def window_bytes(self, element_bytes: int) -> int:
        return sum(buffer.num_bytes(element_bytes) for buffer in self.window)


LayerSpec = PagedKV | Recurrent
LayerSpecs = list[tuple[LayerSpec, ...]]
"""What each layer of a model declares, in layer order; a layer may declare several, or nothing."""


def kv_block_bytes(specs: LayerSpecs, element_bytes: int) -> int:
    """Bytes of one KV block over all layers."""
    return BLOCK_SIZE * sum(s.token_bytes(element_bytes) for layer in specs for s in layer if isinstance(s, PagedKV))


def checkpoint_bytes(specs: LayerSpecs, element_bytes: int) -> int:
    """Bytes of one checkpoint over all layers; 0 for a model without recurrent layers."""
    return sum(s.checkpoint_bytes(element_bytes) for layer in specs for s in layer if isinstance(s, Recurrent))


def window_bytes(specs: LayerSpecs, element_bytes: int) -> int:
    """Bytes of one running sequence's window over all layers."""
    return sum(s.window_bytes(element_bytes) for layer in specs for s in layer if isinstance(s, Recurrent))


def cuttable(specs: LayerSpecs) -> bool:
    """Whether the first rows of a window over all layers are a window too."""
    return all(s.cuttable for layer in specs for s in layer if isinstance(s, Recurrent))
