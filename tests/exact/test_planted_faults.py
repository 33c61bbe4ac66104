"""The tests that hold kernels to exactness must be able to fail: each planted fault turns them red."""

from pathlib import Path

import pytest

from milepost.ops.cpu import library

pytest.importorskip("nanobind", reason="compiling kernels needs nanobind's sources")
from planted_faults import FAULTS, Fault, build, build_runtime, copy_of_kernels, failures, plant

pytestmark = pytest.mark.skipif(not library.available(), reason="no C++ compiler was found at install")


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_runtime(tmp_path_factory.mktemp("nanobind"))


def test_a_fault_turns_the_tests_red(tmp_path: Path, runtime: Path) -> None:
    found = failures_with(FAULTS[0], "portable", tmp_path, runtime, "-x")
    assert len(found) == 1


@pytest.mark.full
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
@pytest.mark.parametrize("instruction_set", library.available()[:1])
def test_every_fault_turns_the_tests_red(fault: Fault, instruction_set: str, tmp_path: Path, runtime: Path) -> None:
    found = failures_with(fault, instruction_set, tmp_path, runtime)
    print(f"{fault.name}: {len(found)} tests fail", *found, sep="\n    ")
    assert found


@pytest.mark.full
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("instruction_set", library.available()[:1])
def test_without_a_fault_they_are_green(instruction_set: str, tmp_path: Path, runtime: Path) -> None:
    """What is built in the same way passes all that the faults fail."""
    module = build(copy_of_kernels(tmp_path), instruction_set, runtime)
    assert failures(module, instruction_set, sorted({path for fault in FAULTS for path in fault.tests})) == []


def failures_with(fault: Fault, instruction_set: str, folder: Path, runtime: Path, *options: str) -> list[str]:
    csrc = copy_of_kernels(folder)
    plant(fault, csrc)
    return failures(build(csrc, instruction_set, runtime), instruction_set, fault.tests, "-k", fault.keyword, *options)
