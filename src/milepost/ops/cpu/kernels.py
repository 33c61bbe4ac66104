"""One compiled module of kernels, whose calls can be noted down."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch

from milepost.ops.cpu.results import RESULTS

Note = Callable[[Callable[..., object], tuple[Any, ...]], None]
"""Told a kernel and the arguments that it was called with."""

Wrap = Callable[[str, Callable[..., object]], Callable[..., object]]


class Kernels:
    """Has the module's functions and constants under their names."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module
        vars(self).update(_public(module))

        self._empty = RESULTS.empty

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """A dense tensor for a result, with undefined contents."""
        return self._empty(shape, dtype)

    def dense_like(self, x: torch.Tensor) -> torch.Tensor:
        """The same, of x's shape and dtype."""
        return self._empty(x.shape, x.dtype)

    def typed(self, name: str, dtype: torch.dtype) -> Callable[..., None]:
        """A kernel that there is for two dtypes."""
        found: Callable[..., None] = vars(self)[f"{name}_f32" if dtype == torch.float32 else f"{name}_bf16"]
        return found

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"{self._module.__name__} has no {name}")

    @contextmanager
    def wrapped(self, wrap: Wrap) -> Iterator[None]:
        """While it lasts, each function is what `wrap` makes of its name and itself."""
        plain = {name: value for name, value in vars(self).items() if callable(value) and not name.startswith("_")}
        vars(self).update({name: wrap(name, value) for name, value in plain.items()})
        try:
            yield
        finally:
            vars(self).update(plain)

    @contextmanager
    def noted(self, note: Note) -> Iterator[None]:
        """While it lasts, `note` is told each call of this thread that returns nothing: a kernel. What returns
        something is a question, and its answer is for the caller to keep. Results lie in memory of torch's, where
        whoever listens to torch sees them."""
        thread = threading.get_ident()

        def noting(name: str, run: Callable[..., object]) -> Callable[..., object]:
            def call(*args: Any) -> object:
                found = run(*args)
                if found is None and threading.get_ident() == thread:
                    note(run, args)
                return found

            return call

        with self.wrapped(noting):
            self._empty = lambda shape, dtype: torch.empty(shape, dtype=dtype)
            try:
                yield
            finally:
                self._empty = RESULTS.empty


def _public(module: ModuleType) -> dict[str, Any]:
    return {name: value for name, value in vars(module).items() if not name.startswith("_")}
