"""Binding of ops, the extension's thread pool, and the fallback to torch."""

import subprocess
import sys
from collections.abc import Callable

import pytest
import torch

from milepost.errors import ConfigError
from milepost.ops import Target, bind
from milepost.ops import torch as reference
from milepost.ops.cpu import CpuBackend, library

FLOAT32 = Target(torch.device("cpu"), torch.float32)
needs_kernels = pytest.mark.skipif(not library.available(), reason="the package was installed without a C++ compiler")


class Stub:
    """Serves one op, refuses the rest."""

    NAME = "stub"
    ROW_INDEPENDENT = frozenset({"rms_norm"})

    def kernel(self, op: str, target: Target) -> Callable[..., object] | str:
        return torch.neg if op == "rms_norm" else f"no {op}"


def test_the_first_backend_that_can_serve_is_bound_and_refusals_are_told() -> None:
    ops, table = bind(FLOAT32, [Stub()])
    assert ops.rms_norm is torch.neg
    assert ops.linear is reference.linear
    chosen = {choice.op: choice for choice in table}
    assert (chosen["rms_norm"].backend, chosen["rms_norm"].exact, chosen["rms_norm"].refused) == ("stub", True, ())
    assert chosen["linear"].backend == "torch"
    assert not chosen["linear"].exact
    assert chosen["linear"].refused == (("stub", "no linear"),)


def test_dtypes_without_a_kernel_fall_back() -> None:
    ops, table = bind(Target(torch.device("cpu"), torch.float16))
    assert ops.rms_norm is reference.rms_norm
    assert all(choice.backend == "torch" for choice in table)


def test_without_the_extension_every_op_runs_in_torch_and_says_why() -> None:
    code = (
        "import sys; sys.modules['milepost._kernels_portable'] = None\n"
        "import torch; from milepost.ops import Target, bind\n"
        "ops, table = bind(Target(torch.device('cpu'), torch.float32))\n"
        "assert {c.backend for c in table} == {'torch'}\n"
        "print(table[0].refused[0][1])\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "not built: no C++ compiler was found at install"


@needs_kernels
def test_torch_and_the_kernels_share_one_thread_pool() -> None:
    before = torch.get_num_threads()
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            assert CpuBackend().num_threads() == threads
    finally:
        torch.set_num_threads(before)
    with open("/proc/self/maps") as maps:
        runtimes = {line.split()[-1] for line in maps if "libgomp" in line or "libiomp" in line or "libomp" in line}
    assert len(runtimes) == 1


@needs_kernels
def test_the_environment_may_choose_the_instruction_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(library.CHOICE, "portable")
    assert CpuBackend().instruction_set == "portable"
    monkeypatch.setattr(library, "available", lambda: ("avx2", "portable"))
    monkeypatch.setenv(library.CHOICE, "avx512")
    with pytest.raises(ConfigError, match="MILEPOST_INSTRUCTION_SET=avx512 cannot be used: this machine") as refused:
        CpuBackend()
    assert refused.value.hint == "use one of: avx2, portable"


@pytest.mark.parametrize("built", [True, False])
def test_an_instruction_set_that_there_is_not_is_an_error_with_and_without_kernels(
    built: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in () if built else library.INSTRUCTION_SETS:
        monkeypatch.setitem(sys.modules, f"milepost._kernels_{name}", None)
    monkeypatch.setenv(library.CHOICE, "nonsense")
    with pytest.raises(ConfigError, match="MILEPOST_INSTRUCTION_SET cannot be 'nonsense'") as refused:
        CpuBackend()
    assert "avx512bf16, avx512, avx2, portable" in refused.value.hint


def test_an_instruction_set_that_was_not_built_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in library.INSTRUCTION_SETS:
        monkeypatch.setitem(sys.modules, f"milepost._kernels_{name}", None)
    monkeypatch.setenv(library.CHOICE, "avx2")
    with pytest.raises(ConfigError, match="MILEPOST_INSTRUCTION_SET=avx2 cannot be used: not built") as refused:
        CpuBackend()
    assert refused.value.hint == "leave it out: torch computes then"


@needs_kernels
def test_a_module_that_is_missing_costs_only_its_own_instruction_set(monkeypatch: pytest.MonkeyPatch) -> None:
    best, *others = library.available()
    monkeypatch.setitem(sys.modules, f"milepost._kernels_{best}", None)
    assert library.available() == tuple(others if best != "portable" else ())
