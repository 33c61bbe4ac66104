"""One compiled module of kernels, whose calls can be noted down."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

Note = Callable[[Callable[..., object], tuple[Any, ...]], None]
"""Told a kernel and the arguments that it was called with."""


class Kernels:
    """Has the module's functions and constants under their names."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module
        vars(self).update(_public(module))

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"{self._module.__name__} has no {name}")

    @contextmanager
    def noted(self, note: Note) -> Iterator[None]:
        """While it lasts, `note` is told each call of this thread that returns nothing: a kernel. What returns
        something is a question, and its answer is for the caller to keep."""
        thread = threading.get_ident()

        def noting(run: Callable[..., object]) -> Callable[..., object]:
            def call(*args: Any) -> object:
                found = run(*args)
                if found is None and threading.get_ident() == thread:
                    note(run, args)
                return found

            return call

        plain = _public(self._module)
        vars(self).update({name: noting(value) if callable(value) else value for name, value in plain.items()})
        try:
            yield
        finally:
            vars(self).update(plain)


def _public(module: ModuleType) -> dict[str, Any]:
    return {name: value for name, value in vars(module).items() if not name.startswith("_")}
