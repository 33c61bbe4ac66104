"""A forward pass written down once, to be run again over new values at the same addresses.

In a decode of few rows the kernels are short, and Python takes a quarter of the time to call them: it looks up modules,
allocates results, reads addresses. All of that comes out the same in the next step, since only values change. So one
step is recorded: which kernels ran, with which arguments, and which operations of torch were between them. Running
the recording makes the same calls with the same arguments, and so the same bits.

Results lie in an `Arena`, where the next recording's lie as well: only one runs at a time. What the caller changes
between runs (token ids, positions, tables) must stay where it is, too; whatever Python decided by looking at values or
shapes was decided once, so a recording is good for steps of one shape only: see `engine/replay.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from milepost.ops.cpu.kernels import Kernels

CHUNK_BYTES = 4 << 20
LINE_BYTES = 64

Result = TypeVar("Result")
Call = tuple[Callable[..., object], tuple[Any, ...]]

_aten = torch.ops.aten
_UNWRITTEN = {_aten.empty.memory_format, _aten.empty_like.default, _aten.empty_strided.default, _aten.new_empty.default}
_INTO: dict[Any, Callable[..., object]] = {_aten.add.Tensor: torch.add, _aten.mul.Tensor: torch.mul}
"""Operations that are run again with `out`, sparing the copy."""


class Arena:
    """Memory for the results of a recording, handed out from its start for each."""

    def __init__(self) -> None:
        self._chunks: list[torch.Tensor] = []
        self.restart()

    def restart(self) -> None:
        self._chunk, self._used = 0, 0

    def like(self, tensor: torch.Tensor) -> torch.Tensor:
        """Memory for a tensor of that shape, strides and dtype; its contents are undefined."""
        extent = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
        num_bytes = extent * tensor.element_size() if tensor.numel() else 0
        flat = self._take(num_bytes).view(tensor.dtype)
        return flat.as_strided(tensor.shape, tensor.stride())

    def _take(self, num_bytes: int) -> torch.Tensor:
        while self._chunk < len(self._chunks) and self._used + num_bytes > self._chunks[self._chunk].numel():
            self._chunk, self._used = self._chunk + 1, 0
        if self._chunk == len(self._chunks):
            self._chunks.append(torch.empty(max(CHUNK_BYTES, num_bytes), dtype=torch.uint8))
        start = self._used
        self._used += -(-num_bytes // LINE_BYTES) * LINE_BYTES
        return self._chunks[self._chunk][start : start + num_bytes]


@dataclass(frozen=True)
class Recording(Generic[Result]):
    """What `record` has written down. `kept` are tensors whose memory the calls name."""

    calls: Sequence[Call]
    result: Result
    kept: Sequence[torch.Tensor]

    def run(self) -> Result:
        """The result, as it was returned when recorded, with new values in it."""
        for run, args in self.calls:
            run(*args)
        return self.result


def record(
    run: Callable[[], Result], kernels: Kernels, arena: Arena, constants: Iterable[torch.Tensor] = ()
) -> Recording[Result]:
    """Runs `run`, which computes with `kernels` and torch only, and writes it down. What is computed from `constants`
    alone stays as it is, and must not be written to."""
    arena.restart()
    mode = _Mode(arena, constants)
    with mode, kernels.noted(lambda kernel, args: mode.calls.append((kernel, args))):
        result = run()
    return Recording(mode.calls, result, mode.kept)


class _Mode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes what torch computes, and moves its results into the arena."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing here is ever compiled. If torch had to see to that it would load its compiler, 800 modules, in the
        middle of a request: one to four seconds."""
        return False

    def __init__(self, arena: Arena, constants: Iterable[torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.arena = arena
        self.calls: list[Call] = []
        self.kept: list[torch.Tensor] = []
        self.constants = {_storage(tensor) for tensor in constants}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        found = func(*args, **kwargs)
        if func._schema.is_mutable:
            changed = {_storage(x) for x in _written(func, args, kwargs) if x.numel()}
            assert not changed & self.constants, f"{func} would change what is made of constants, again in each run"
            self.calls.append((partial(func, **kwargs), args))
            return found
        given = {_storage(x) for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)}
        made = [x for x in tree_leaves(found) if isinstance(x, torch.Tensor)]
        if all(_storage(x) in given for x in made):  # views
            self.kept += made
            return found
        if given and given <= self.constants and func not in _UNWRITTEN:
            self.constants.update(_storage(x) for x in made)
            self.kept += made
            return found
        placed = tree_map_only(torch.Tensor, self._place, found)
        self.kept += (x for x in tree_leaves(placed) if isinstance(x, torch.Tensor))
        if func not in _UNWRITTEN:
            self.calls.append(_again(func, args, kwargs, placed))
        return placed

    def _place(self, tensor: torch.Tensor) -> torch.Tensor:
        return self.arena.like(tensor).copy_(tensor)


def _again(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], placed: Any) -> Call:
    """The call that puts the results of `func` where they were put first."""
    if func in _INTO and not kwargs:
        return partial(_INTO[func], out=placed), args
    places = [x for x in tree_leaves(placed) if isinstance(x, torch.Tensor)]

    def run(*args: Any) -> None:
        for place, new in zip(places, tree_leaves(func(*args, **kwargs)), strict=True):
            place.copy_(new)

    return run, args


def _written(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """The arguments that `func` changes."""
    arguments = func._schema.arguments
    given = {argument.name: value for argument, value in zip(arguments, args, strict=False)} | kwargs
    changed = [given.get(a.name) for a in arguments if a.alias_info is not None and a.alias_info.is_write]
    return [x for x in tree_leaves(changed) if isinstance(x, torch.Tensor)]


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
