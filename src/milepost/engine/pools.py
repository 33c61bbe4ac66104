"""The memory behind the layers' states, allotted from what they declare."""

from __future__ import annotations

import torch

from milepost.ops import KVLayer
from milepost.specs import BLOCK_SIZE, LayerSpec, LayerSpecs, PagedKV


def allocate_kv(specs: LayerSpecs, num_blocks: int, dtype: torch.dtype, device: torch.device) -> list[KVLayer | None]:
    """Per layer its paged KV of `num_blocks` blocks, or None where it declares none. Contents are undefined."""
    return [_layer_kv(layer, num_blocks, dtype, device) for layer in specs]


def _layer_kv(
    layer: tuple[LayerSpec, ...], num_blocks: int, dtype: torch.dtype, device: torch.device
) -> KVLayer | None:
    for spec in layer:
        if isinstance(spec, PagedKV):
            shape = (num_blocks, BLOCK_SIZE, spec.num_kv_heads, spec.head_dim)
            return KVLayer(
                torch.empty(shape, dtype=dtype, device=device), torch.empty(shape, dtype=dtype, device=device)
            )
    return None
