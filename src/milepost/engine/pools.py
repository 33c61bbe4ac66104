"""The memory behind the layers' states, allotted from what they declare."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import torch

from milepost.ops import KVLayer, RecurrentLayer
from milepost.specs import BLOCK_SIZE, Buffer, LayerSpec, LayerSpecs, PagedKV, Recurrent


@dataclass(frozen=True)
class Pools:
    """For each layer its paged KV and its recurrent buffers, None where it has none (see `ForwardBatch`)."""

    kv: list[KVLayer | None]
    recurrent: list[RecurrentLayer | None]


def allocate_pools(
    specs: LayerSpecs, num_blocks: int, num_slots: int, num_windows: int, dtype: torch.dtype, device: torch.device
) -> Pools:
    """Memory for `num_blocks` KV blocks, `num_slots` checkpoints and `num_windows` windows.

    Contents are undefined but for checkpoint slot 0, the state of the empty prefix: zeros.
    """
    kv = [_kv(_only(PagedKV, layer), num_blocks, dtype, device) for layer in specs]
    recurrent = [_recurrent(_only(Recurrent, layer), num_slots, num_windows, dtype, device) for layer in specs]
    return Pools(kv, recurrent)


Kind = TypeVar("Kind", PagedKV, Recurrent)


def _only(kind: type[Kind], layer: tuple[LayerSpec, ...]) -> Kind | None:
    found = [spec for spec in layer if isinstance(spec, kind)]
    assert len(found) <= 1, f"a layer declares {len(found)} states of one kind"
    return found[0] if found else None


def _kv(spec: PagedKV | None, num_blocks: int, dtype: torch.dtype, device: torch.device) -> KVLayer | None:
    if spec is None:
        return None
    shape = (num_blocks, BLOCK_SIZE, spec.num_kv_heads, spec.head_dim)
    return KVLayer(torch.empty(shape, dtype=dtype, device=device), torch.empty(shape, dtype=dtype, device=device))


def _recurrent(
    spec: Recurrent | None, num_slots: int, num_windows: int, dtype: torch.dtype, device: torch.device
) -> RecurrentLayer | None:
    if spec is None:
        return None

    def empty(num: int, buffer: Buffer) -> torch.Tensor:
        return torch.empty((num, *buffer.shape), dtype=torch.float32 if buffer.wide else dtype, device=device)

    checkpoint = {buffer.name: empty(num_slots, buffer) for buffer in spec.checkpoint}
    for tensor in checkpoint.values():
        tensor[0] = 0
    return RecurrentLayer(checkpoint, {buffer.name: empty(num_windows, buffer) for buffer in spec.window})
