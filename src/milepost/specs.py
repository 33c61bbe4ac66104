"""What a layer remembers between steps, in words that the engine can add up without knowing the layer's kind."""

from __future__ import annotations

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


LayerSpec = PagedKV
"""Union of all that a layer can declare; recurrent buffers join it."""


def kv_block_bytes(specs: list[tuple[LayerSpec, ...]], element_bytes: int) -> int:
    """Bytes of one KV block over all layers. `specs[i]` is what layer i declares (a layer may declare several)."""
    return BLOCK_SIZE * sum(spec.token_bytes(element_bytes) for layer in specs for spec in layer)
