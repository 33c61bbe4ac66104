"""Which of the compiled kernel modules this machine can run: one for each instruction set, the best one first."""

from __future__ import annotations

import importlib
import os
from types import ModuleType

import torch  # noqa: F401  before the extension, which then shares its OpenMP runtime: one thread pool in the process

from milepost.errors import ConfigError

INSTRUCTION_SETS = ("avx512bf16", "avx512", "avx2", "portable")
"""Best first. Bits may differ between two of them, never within one."""

CHOICE = "MILEPOST_INSTRUCTION_SET"
"""Environment variable that names one of them, where another than the machine's best is wanted."""


def available() -> tuple[str, ...]:
    """The built instruction sets that this machine has, best first; none if nothing was built."""
    portable = module_of("portable")
    if isinstance(portable, str):
        return ()
    return tuple(found for found in portable.instruction_sets() if not isinstance(module_of(found), str))


def chosen() -> str | None:
    """The instruction set to use: as the environment says, else the best; None if nothing was built.

    ConfigError if the environment names one that there is not, that was not built, or that this machine does not have.
    """
    found, wanted = available(), os.environ.get(CHOICE)
    if not wanted:
        return found[0] if found else None
    if wanted not in INSTRUCTION_SETS:
        raise ConfigError(f"{CHOICE} cannot be {wanted!r}", f"one of: {', '.join(INSTRUCTION_SETS)}; or leave it out")
    if wanted not in found:
        module = module_of(wanted)
        reason = module if isinstance(module, str) else "this machine does not have it"
        usable = f"use one of: {', '.join(found)}" if found else "leave it out: torch computes then"
        raise ConfigError(f"{CHOICE}={wanted} cannot be used: {reason}", usable)
    return wanted


def module_of(instruction_set: str) -> ModuleType | str:
    """The compiled module, or why it is not there."""
    name = f"_kernels_{instruction_set}"
    try:
        return importlib.import_module(f"milepost.{name}")
    except ImportError as error:
        missing = "not built: no C++ compiler was found at install"
        return missing if name in str(error) else str(error)
