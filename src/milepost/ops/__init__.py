"""Ops: the signatures (the torch reference in `torch/`), the backends behind them, and the table that binds them."""

from milepost.ops.batch import ForwardBatch, KVLayer, RecurrentLayer, Rows
from milepost.ops.packed import PackedWeight
from milepost.ops.registry import Choice, Ops, Target, bind, exactness

__all__ = [
    "Choice",
    "ForwardBatch",
    "KVLayer",
    "Ops",
    "PackedWeight",
    "RecurrentLayer",
    "Rows",
    "Target",
    "bind",
    "exactness",
]
