"""Weights in the order that the ops read them, once a model's are all in."""

from __future__ import annotations

from collections import defaultdict

from torch import nn

from milepost.layers.linear import Embedding, Linear
from milepost.layers.moe import Experts
from milepost.ops import Ops, PackedWeight

PACKED = {Linear: ("weight",), Experts: ("gate_up_proj", "down_proj")}
"""Parameters that only matrix products read, by kind of layer."""


def pack_weights(model: nn.Module, ops: Ops) -> None:
    """Replaces each such parameter by what `ops.pack` makes of it, one at a time, so that no two copies of all exist.
    Embeddings that share a tensor with one of them share the packed one too."""
    uses: dict[int, list[tuple[nn.Module, str]]] = defaultdict(list)
    for kind, names in ((Embedding, ("weight",)), *PACKED.items()):
        for module in model.modules():
            if isinstance(module, kind):
                for name in names:
                    uses[id(module._parameters[name])].append((module, name))
    for places in list(uses.values()):
        module, name = places[-1]
        if isinstance(module, Embedding):  # the last of a tensor's users, and so the only one
            continue
        packed = ops.pack(getattr(module, name))
        if isinstance(packed, PackedWeight):
            for user, name in places:
                del user._parameters[name]
                setattr(user, name, packed)


def packed_bytes(model: nn.Module) -> int:
    """Bytes of all packed weights, a shared one once."""
    found = [value for module in model.modules() for value in vars(module).values() if isinstance(value, PackedWeight)]
    return sum(weight.num_bytes for weight in {id(weight): weight for weight in found}.values())
