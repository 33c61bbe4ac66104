"""The machine and its cgroups, told from folders that stand in for /proc and /sys."""

import os
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest

from milepost import machine
from milepost.machine import Machine, available_memory_bytes, describe_machine, usable_cpus

GIB = 1 << 30
CPUINFO = """processor\t: 0
model name\t: Example 9 CPU @ 3 GHz
flags\t\t: fpu avx avx2 fma avx512f avx512_bf16 amx_tile

processor\t: 1
model name\t: Another
flags\t\t: fpu
"""


def write(root: Path, **files: str | int) -> Path:
    """Files below `root`; "__" in a name stands for a slash and "_DOT_" for a dot."""
    for name, content in files.items():
        path = root / name.replace("__", "/").replace("_DOT_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(str(content))
    return root


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine of 8 processors and 16 GiB, 12 of them available, without cgroups."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    memory = f"MemTotal: {16 << 20} kB\nMemFree: {1 << 20} kB\nMemAvailable: {12 << 20} kB\n"
    return write(tmp_path, proc__meminfo=memory, proc__cpuinfo=CPUINFO)


def test_a_machine_without_limits(root: Path) -> None:
    sets = ("avx", "avx2", "fma", "avx512f", "avx512_bf16", "amx_tile")
    assert describe_machine(root) == Machine("Example 9 CPU @ 3 GHz", 8, 16 * GIB, 12 * GIB, sets)


def test_cgroup_2_memory(root: Path) -> None:
    write(
        root,
        proc__self__cgroup="0::/box/job\n",
        sys__fs__cgroup__box__job__memory_DOT_max=4 * GIB,
        sys__fs__cgroup__box__job__memory_DOT_current=3 * GIB,
        sys__fs__cgroup__box__job__memory_DOT_stat=f"anon 5\nactive_file {GIB // 2}\ninactive_file {GIB // 4}\n",
    )
    machine = describe_machine(root)
    assert machine.memory_bytes == 4 * GIB
    assert machine.available_bytes == available_memory_bytes(root) == 4 * GIB - (3 * GIB - GIB // 2 - GIB // 4)


def test_the_tightest_cgroup_above_counts(root: Path) -> None:
    write(
        root,
        proc__self__cgroup="0::/box/job\n",
        sys__fs__cgroup__box__job__memory_DOT_max="max",
        sys__fs__cgroup__box__memory_DOT_max=2 * GIB,
        sys__fs__cgroup__box__memory_DOT_current=GIB,
    )
    assert describe_machine(root).memory_bytes == 2 * GIB
    assert available_memory_bytes(root) == GIB


def test_a_limit_above_what_the_system_has_changes_nothing(root: Path) -> None:
    write(root, proc__self__cgroup="0::/\n", sys__fs__cgroup__memory_DOT_max=100 * GIB)
    assert describe_machine(root).memory_bytes == 16 * GIB
    assert available_memory_bytes(root) == 12 * GIB


def test_a_cgroup_over_its_limit_has_nothing_left(root: Path) -> None:
    write(
        root,
        proc__self__cgroup="0::/\n",
        sys__fs__cgroup__memory_DOT_max=GIB,
        sys__fs__cgroup__memory_DOT_current=2 * GIB,
    )
    assert available_memory_bytes(root) == 0


def test_cgroup_1_memory(root: Path) -> None:
    write(
        root,
        proc__self__cgroup="4:memory:/job\n1:cpu,cpuacct:/job\n0::/\n",
        sys__fs__cgroup__memory__job__memory_DOT_limit_in_bytes=4 * GIB,
        sys__fs__cgroup__memory__job__memory_DOT_usage_in_bytes=3 * GIB,
        sys__fs__cgroup__memory__job__memory_DOT_stat=f"active_file 1\ntotal_active_file {GIB}\n",
        sys__fs__cgroup__memory__memory_DOT_limit_in_bytes=9223372036854771712,
        sys__fs__cgroup__memory__memory_DOT_usage_in_bytes=GIB,
    )
    assert describe_machine(root).memory_bytes == 4 * GIB
    assert available_memory_bytes(root) == 2 * GIB


def test_a_container_sees_its_own_cgroup_as_the_top(root: Path) -> None:
    """The name in /proc is the one outside: there is no such folder inside."""
    write(
        root,
        proc__self__cgroup="4:memory:/docker/0123\n",
        sys__fs__cgroup__memory__memory_DOT_limit_in_bytes=GIB,
        sys__fs__cgroup__memory__memory_DOT_usage_in_bytes=0,
    )
    assert available_memory_bytes(root) == GIB


@pytest.mark.parametrize(
    ("quota", "expected"),
    [("max 100000", 8), ("150000 100000", 2), ("200000 100000", 2), ("5000 100000", 1), ("9900000 100000", 8)],
)
def test_cgroup_2_cpus(root: Path, quota: str, expected: int) -> None:
    write(root, proc__self__cgroup="0::/job\n", sys__fs__cgroup__job__cpu_DOT_max=quota + "\n")
    assert usable_cpus(root) == expected


@pytest.mark.parametrize(("quota", "expected"), [(-1, 8), (250_000, 3), (0, 8)])
def test_cgroup_1_cpus(root: Path, quota: int, expected: int) -> None:
    write(
        root,
        proc__self__cgroup="1:cpu,cpuacct:/job\n",
        **{
            "sys__fs__cgroup__cpu,cpuacct__job__cpu_DOT_cfs_quota_us": f"{quota}\n",
            "sys__fs__cgroup__cpu,cpuacct__job__cpu_DOT_cfs_period_us": "100000\n",
        },
    )
    assert usable_cpus(root) == expected


def test_affinity_counts(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3})
    assert usable_cpus(root) == 1
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert usable_cpus(root) == 1


def test_arm(root: Path) -> None:
    write(root, proc__cpuinfo="processor : 0\nBogoMIPS : 50\nFeatures : fp asimd asimddp bf16 i8mm sve2\n")
    machine = describe_machine(root)
    assert machine.instruction_sets == ("asimd", "asimddp", "bf16", "i8mm", "sve2")
    assert machine.cpu


def test_where_the_system_tells_nothing(tmp_path: Path) -> None:
    machine = describe_machine(tmp_path)
    assert machine.num_cpus >= 1
    assert machine.memory_bytes >= machine.available_bytes > 0
    assert machine.instruction_sets == ()
    assert machine.cpu


def test_nonsense_in_the_files(root: Path) -> None:
    write(
        root,
        proc__self__cgroup="\n::::\n0::/../..\nx\n",
        proc__cpuinfo="\x00\n:\n",
        proc__meminfo=f"MemAvailable\nMemAvailable:\nMemAvailable: x\nMemAvailable: 7 kB\nMemTotal: {16 << 20} kB\n",
        sys__fs__cgroup__memory__memory_DOT_limit_in_bytes=GIB,
        sys__fs__cgroup__memory__memory_DOT_stat="total_active_file\ntotal_active_file many\n",
        sys__fs__cgroup__memory_DOT_max="many\n",
        sys__fs__cgroup__cpu_DOT_max="\n",
    )
    assert describe_machine(root).memory_bytes == 16 * GIB
    assert available_memory_bytes(root) == 7 * 1024
    assert usable_cpus(root) == 8


def test_this_machine() -> None:
    machine = describe_machine()
    assert machine.num_cpus >= 1
    assert 0 < machine.available_bytes <= machine.memory_bytes


def test_torch_is_not_imported() -> None:
    code = "import sys, milepost.machine; milepost.machine.describe_machine(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, {"GOMP_SPINCOUNT": machine.SPINS}),
        ({"GOMP_SPINCOUNT": "7"}, {"GOMP_SPINCOUNT": "7"}),
        ({"OMP_WAIT_POLICY": "active"}, {"OMP_WAIT_POLICY": "active"}),
    ],
)
def test_what_the_environment_says_of_waiting_stays(before: dict[str, str], after: dict[str, str]) -> None:
    with mock.patch.dict(os.environ, before, clear=True):
        machine.wait_briefly()
        assert dict(os.environ) == after
