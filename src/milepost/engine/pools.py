"""The memory behind the layers' states, allotted from what they declare."""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch

from milepost.machine import advise_pages
from milepost.ops import KVLayer, RecurrentLayer
from milepost.specs import BLOCK_SIZE, Buffer, LayerSpec, LayerSpecs, PagedKV, Recurrent

DONT_NEED = 4
"""`MADV_DONTNEED` of Linux: the pages go, the addresses stay, and what is written there next gets new pages."""


@dataclass(frozen=True)
class Pools:
    """For each layer its paged KV and its recurrent buffers, None where it has none (see `ForwardBatch`).

    They are address space: a page is there once something has been written to it, until `give_back`.
    """

    kv: list[KVLayer | None]
    recurrent: list[RecurrentLayer | None]

    def copy(self, windows: Iterable[tuple[int, int]], blocks: Iterable[tuple[int, int]]) -> None:
        """Copies whole windows and KV blocks: pairs of numbers, from and to, none of which is on both sides."""
        for source, target in windows:
            for recurrent in self.recurrent:
                for tensor in recurrent.window.values() if recurrent is not None else ():
                    tensor[target].copy_(tensor[source])
        for source, target in blocks:
            for layer in self.kv:
                if layer is not None:
                    layer.k[target].copy_(layer.k[source])
                    layer.v[target].copy_(layer.v[source])

    def give_back(self, blocks: Sequence[int], slots: Sequence[int]) -> None:
        """The pages of these KV blocks and checkpoint slots go back to the machine; their contents are lost."""
        for layer in self.kv:
            if layer is not None:
                _give_back(layer.k, blocks)
                _give_back(layer.v, blocks)
        for recurrent in self.recurrent:
            for tensor in recurrent.checkpoint.values() if recurrent is not None else ():
                _give_back(tensor, slots)


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


def _give_back(tensor: torch.Tensor, numbers: Sequence[int]) -> None:
    """The whole pages that entries `numbers` of `tensor` lie in, where the machine can take them."""
    if tensor.device.type != "cpu":
        return
    entry_bytes = tensor[0].numel() * tensor.element_size()
    for first, count in _runs(numbers):
        start = tensor.data_ptr() + first * entry_bytes
        end = (start + count * entry_bytes) // mmap.PAGESIZE * mmap.PAGESIZE
        start = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
        advise_pages(start, end, DONT_NEED)


def _runs(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Runs of consecutive numbers: the first one, and how many."""
    first, count = 0, 0
    for number in sorted(numbers):
        if count and number == first + count:
            count += 1
            continue
        if count:
            yield first, count
        first, count = number, 1
    if count:
        yield first, count
