"""Which backend computes which op: decided once at load, with the reason for each refusal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Protocol

import torch

from milepost.ops import cpu
from milepost.ops import torch as reference
from milepost.ops.cpu.kernels import Kernels
from milepost.ops.packed import PackedWeight


@dataclass(frozen=True, slots=True)
class Target:
    """What the ops will run on and in."""

    device: torch.device
    dtype: torch.dtype


@dataclass(frozen=True)
class Ops:
    """The bound ops. Each has the signature and meaning of its namesake in `ops/torch`."""

    pack: Callable[[torch.Tensor], torch.Tensor | PackedWeight]
    linear: Callable[..., torch.Tensor]
    embed: Callable[..., torch.Tensor]
    rms_norm: Callable[..., torch.Tensor]
    offset_rms_norm: Callable[..., torch.Tensor]
    gated_rms_norm: Callable[..., torch.Tensor]
    l2_norm: Callable[..., torch.Tensor]
    rope_angles: Callable[..., tuple[torch.Tensor, torch.Tensor]]
    rotate_half: Callable[..., torch.Tensor]
    silu: Callable[..., torch.Tensor]
    silu_mul: Callable[..., torch.Tensor]
    gelu_tanh_mul: Callable[..., torch.Tensor]
    sigmoid: Callable[..., torch.Tensor]
    sigmoid_mul: Callable[..., torch.Tensor]
    soft_cap: Callable[..., torch.Tensor]
    softplus: Callable[..., torch.Tensor]
    wide: Callable[..., torch.Tensor]
    add: Callable[..., torch.Tensor]
    mul: Callable[..., torch.Tensor]
    scan_output: Callable[..., torch.Tensor]
    store_kv: Callable[..., None]
    paged_attention: Callable[..., torch.Tensor]
    causal_conv: Callable[..., torch.Tensor]
    mamba2: Callable[..., torch.Tensor]
    gated_delta: Callable[..., torch.Tensor]
    selective_scan: Callable[..., torch.Tensor]
    route: Callable[..., tuple[torch.Tensor, torch.Tensor]]
    moe_mlp: Callable[..., torch.Tensor]
    kernels: Kernels | None = None
    """What computes all of the ops, if that is one compiled module."""


class Backend(Protocol):
    """A package of kernels. `kernel` returns the function, or the reason (one phrase) why it cannot serve.

    `ROW_INDEPENDENT` names the ops whose bits of a row never depend on the other rows.
    """

    NAME: str
    ROW_INDEPENDENT: frozenset[str]

    def kernel(self, op: str, target: Target) -> Callable[..., object] | str: ...


@dataclass(frozen=True, slots=True)
class Choice:
    """One row of the table that is logged at start: who computes the op, whether its rows are independent of each
    other (what exactness needs), and who would not serve and why."""

    op: str
    backend: str
    exact: bool
    refused: tuple[tuple[str, str], ...]


def bind(target: Target, backends: Sequence[Backend] | None = None) -> tuple[Ops, list[Choice]]:
    """For each op the first of `backends` (default: the C++ kernels) that serves `target`, else the torch reference."""
    backends = [cpu.CpuBackend()] if backends is None else backends
    bound: dict[str, Callable[..., object]] = {}
    table = []
    for op in (f.name for f in fields(Ops) if f.name != "kernels"):
        bound[op], name, exact, refused = getattr(reference, op), "torch", op in reference.ROW_INDEPENDENT, []
        for backend in backends:
            found = backend.kernel(op, target)
            if not isinstance(found, str):
                bound[op], name, exact = found, backend.NAME, op in backend.ROW_INDEPENDENT
                break
            refused.append((backend.NAME, found))
        table.append(Choice(op, name, exact, tuple(refused)))
    return Ops(**bound, kernels=_one_for_all(table, backends)), table  # type: ignore[arg-type]


def _one_for_all(table: Sequence[Choice], backends: Sequence[Backend]) -> Kernels | None:
    for backend in backends:
        if isinstance(backend, cpu.CpuBackend) and {choice.backend for choice in table} == {backend.NAME}:
            return None if isinstance(backend.kernels, str) else backend.kernels
    return None


def exactness(table: Sequence[Choice]) -> str:
    """One phrase: whether the bits of a row depend on its own sequence alone; if not, by whose fault and why."""
    loose: dict[str, list[str]] = {}
    for choice in table:
        if not choice.exact:
            reasons = "; ".join(f"{backend}: {reason}" for backend, reason in choice.refused)
            loose.setdefault(reasons, []).append(choice.op)
    if not loose:
        return f"yes, in {' and '.join(sorted({choice.backend for choice in table}))} kernels"
    told = "; ".join(f"{', '.join(ops)} run in torch ({reasons})" for reasons, ops in loose.items())
    return f"no, other rows in the batch may change low bits: {told}"
