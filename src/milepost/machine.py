"""What the process may use of the machine: processors, memory, instruction sets. Limits of cgroups count."""

from __future__ import annotations

import ctypes
import math
import os
import platform
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/")
"""Where /proc and /sys are; tests pass a folder of their own."""

INSTRUCTION_SETS = (
    *("avx", "avx2", "f16c", "fma", "avx_vnni", "avx512f", "avx512bw", "avx512vl", "avx512_vnni"),
    *("avx512_bf16", "avx512_fp16", "amx_tile", "amx_int8", "amx_bf16", "amx_fp16"),
    *("asimd", "asimdhp", "asimddp", "bf16", "i8mm", "sve", "sve2"),
)
"""Those that kernels may care about, as Linux spells them: x86, then Arm."""

_NO_LIMIT = 1 << 60
"""cgroup v1 writes "no limit" as a number near 2^63."""


SPINS = "2000"
"""How often a thread of torch's looks for work before it sleeps: about 10 us."""


def wait_briefly() -> None:
    """To be called before torch is imported. Its threads look for the next operation by default for milliseconds, which
    they would take from the kernels' own (`csrc/pool.h`). What the environment says of it stays."""
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPINS)


@dataclass(frozen=True, slots=True)
class Machine:
    """cpu: the model's name; num_cpus: processors this process may use; memory in bytes, total and still available."""

    cpu: str
    num_cpus: int
    memory_bytes: int
    available_bytes: int
    instruction_sets: tuple[str, ...]


def describe_machine(root: Path = ROOT) -> Machine:
    """All of it, read anew at each call; what the system does not tell is left at its safest value."""
    info = _cpuinfo(root)
    flags = set((info.get("flags") or info.get("Features") or "").split())
    return Machine(
        cpu=info.get("model name") or platform.processor() or platform.machine() or "unknown",
        num_cpus=usable_cpus(root),
        memory_bytes=_memory(root, "MemTotal", available=False),
        available_bytes=available_memory_bytes(root),
        instruction_sets=tuple(name for name in INSTRUCTION_SETS if name in flags),
    )


def advise_pages(start: int, end: int, advice: int) -> None:
    """What is meant with the pages from address `start` to `end`, both multiples of a page: Linux's `madvise`, one of
    `mmap`'s MADV constants. Elsewhere, and where it is refused, they stay as they are."""
    if sys.platform == "linux" and start < end:
        ctypes.CDLL(None).madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), ctypes.c_int(advice))


def usable_cpus(root: Path = ROOT) -> int:
    """Processors in this process's affinity, or fewer where a cgroup's quota allows less (rounded up, at least 1)."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([allowed, *(math.ceil(quota) for quota in _cpu_quotas(root))]))


def available_memory_bytes(root: Path = ROOT) -> int:
    """Bytes that can still be allocated: the system's, or what is left below the tightest cgroup limit.

    File cache that the kernel can drop counts as available in both.
    """
    return _memory(root, "MemAvailable", available=True)


def _memory(root: Path, key: str, available: bool) -> int:
    bounds = [_system_memory(root, key, available)]
    for limit, used in _memory_limits(root):
        bounds.append(limit - used if available else limit)
    return max(0, min(bounds))


def _system_memory(root: Path, key: str, available: bool) -> int:
    for line in _text(root / "proc/meminfo").splitlines():
        name, _, value = line.partition(":")
        if name == key and value.split()[0:1] and value.split()[0].isdigit():
            return int(value.split()[0]) * 1024
    import psutil  # no /proc/meminfo: not Linux

    memory = psutil.virtual_memory()
    return int(memory.available if available else memory.total)


def _memory_limits(root: Path) -> Iterator[tuple[int, int]]:
    """(limit, bytes in use that cannot be dropped) of every cgroup with a memory limit above this process."""
    for folder, version in _cgroups(root, "memory"):
        names = ("memory.max", "memory.current") if version == 2 else ("memory.limit_in_bytes", "memory.usage_in_bytes")
        limit, used = (_number(folder / name) for name in names)
        if limit is None or limit >= _NO_LIMIT:
            continue
        prefix = "" if version == 2 else "total_"
        names = (f"{prefix}active_file", f"{prefix}inactive_file")
        stat = (line.split() for line in _text(folder / "memory.stat").splitlines())
        cache = sum(int(entry[1]) for entry in stat if len(entry) == 2 and entry[0] in names and entry[1].isdigit())
        yield limit, max(0, (used or 0) - cache)


def _cpu_quotas(root: Path) -> Iterator[float]:
    """Processors' worth of time that each cgroup above this process allows, where one is limited."""
    for folder, version in _cgroups(root, "cpu"):
        if version == 2:
            quota, period = [*_text(folder / "cpu.max").split(), "", ""][:2]
        else:
            quota, period = _text(folder / "cpu.cfs_quota_us"), _text(folder / "cpu.cfs_period_us")
        quota, period = quota.strip(), period.strip()
        if quota.isdigit() and period.isdigit() and int(quota) > 0 and int(period) > 0:
            yield int(quota) / int(period)


def _cgroups(root: Path, controller: str) -> Iterator[tuple[Path, int]]:
    """The folders of this process's cgroups for `controller`, from its own up to the top, with their version."""
    mount = root / "sys/fs/cgroup"
    places: list[tuple[Path, str, int]] = []
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers:
            places += [(mount, path, 2), (mount / "unified", path, 2)]
        elif controller in controllers.split(","):
            places += [(mount / controllers, path, 1), (mount / controller, path, 1)]
    for top, path, version in places or [(mount, "", 2), (mount / controller, "", 1)]:
        folder = top / path.strip("/")
        if ".." in folder.parts or not folder.is_dir():
            folder = top  # a container sees its own cgroup as the top, and its name from outside
        while True:
            yield folder, version
            if folder == top:
                break
            folder = folder.parent


def _cpuinfo(root: Path) -> dict[str, str]:
    """The first processor's lines of /proc/cpuinfo."""
    first = _text(root / "proc/cpuinfo").split("\n\n")[0]
    pairs = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.isdigit() else None


def _text(path: Path) -> str:
    """The file's text, or nothing where there is no such file or it may not be read."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
