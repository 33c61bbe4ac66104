"""Faults to plant in a copy of the kernels, one at a time: the tests must find each.

A fault replaces one piece of text, which must be there exactly once: who changes a kernel plants its fault anew.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import nanobind

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent


@dataclass(frozen=True)
class Fault:
    """`right` in csrc/`file` becomes `wrong`. Those of `tests` (paths below tests/) that match `keyword` find it."""

    name: str
    file: str
    right: str
    wrong: str
    tests: tuple[str, ...]
    keyword: str = ""


FAULTS = (
    Fault(
        name="a sum order that depends on the row count",
        file="gemm.h",
        right="for (int i = 0; i < 4; ++i) step<ROWS>(held,",
        wrong="for (int i = ROWS == 1 ? 3 : 0; i >= 0 && i < 4; i += ROWS == 1 ? -1 : 1) step<ROWS>(held,",
        tests=("exact/test_exact.py", "ops/test_linear_kernels.py"),
        keyword="llama or linear",
    ),
    Fault(
        name="one thread's share rounded differently",
        file="gemm.h",
        right="store_upto(out + r * stride + c, sum, n);",
        wrong="""if (omp_get_thread_num() == 1) sum = as_float(as_bits(sum) & 0xffff0000u);
        store_upto(out + r * stride + c, sum, n);""",
        tests=("exact/test_exact.py", "ops/test_linear_kernels.py"),
        keyword="llama or linear",
    ),
    Fault(
        name="window off by one",
        file="attention_jobs.h",
        right="return position < window ? 0 : position - window + 1;",
        wrong="return position <= window ? 0 : position - window;",
        tests=("ops/test_attention_kernels.py", "models/test_gemma3.py", "models/test_llama.py"),
    ),
    Fault(
        name="a part of the softmax merged that the row does not see",
        file="attention.h",
        right="if (a.shape.sees_split(job.position + r, job.split + k))",
        wrong="if (job.rows > r)",
        tests=("exact/test_exact.py", "ops/test_attention_kernels.py"),
        keyword="wider or attention",
    ),
    Fault(
        name="conv tail dropped",
        file="conv.h",
        right="from = open.offset ? 0 : -before;",
        wrong="from = 0;",
        tests=("exact/test_exact.py", "ops/test_conv_kernels.py"),
        keyword="lfm2 or conv",
    ),
    Fault(
        name="decay from the wrong grid point",
        file="recurrence.h",
        right="h.sums[j] = total += static_cast<double>(*log_g[j]);",
        wrong="h.sums[j] = total += j < h.offset ? 0.0 : static_cast<double>(*log_g[j]);",
        tests=("exact/test_exact.py", "ops/test_recurrence_kernels.py"),
        keyword="mamba2 or qwen3_5 or recurrence",
    ),
    Fault(
        name="a state stored one row early",
        file="scan.h",
        right="for (std::int64_t r = 0; r < segment->rows(); ++r) scan_row(s, segment->row + r, tile, a, h);",
        wrong="""for (std::int64_t r = 0; r < segment->rows(); ++r) {
                    if (r + 1 == CHUNK && segment->grid_slot >= 0)
                        tile.store(s.state + segment->grid_slot * slot_size, s.size, h);
                    scan_row(s, segment->row + r, tile, a, h);
                }
                if (segment->rows() == CHUNK) continue;""",
        tests=("exact/test_exact.py", "ops/test_scan_kernels.py"),
        keyword="mamba or scan",
    ),
    Fault(
        name="a sum that begins with what its memory held",
        file="scan.h",
        right="vf total = tile.entry ? load_upto(out, tile.channels) : vf{};",
        wrong="vf total = load_upto(out, tile.channels);",
        tests=("exact/test_exact.py", "ops/test_scan_kernels.py"),
        keyword="mamba or scan",
    ),
    Fault(
        name="denormals flushed by one thread alone",
        file="parallel.h",
        right="_mm_setcsr(before_ | 0x8040);",
        wrong="_mm_setcsr(before_ | (omp_get_thread_num() == 0 ? 0x8040 : 0));",
        tests=("exact/test_denormals.py",),
    ),
)


def copy_of_kernels(folder: Path) -> Path:
    return Path(shutil.copytree(ROOT / "csrc", folder / "csrc"))


def plant(fault: Fault, csrc: Path) -> None:
    path = csrc / fault.file
    text = path.read_text()
    found = text.count(fault.right)
    assert found == 1, f"{fault.name}: its place is {found} times in {fault.file}, plant it anew"
    path.write_text(text.replace(fault.right, fault.wrong))


def build(csrc: Path, instruction_set: str, runtime: Path) -> Path:
    """The compiled module of `csrc`, beside it. `runtime`: nanobind's own object, from `build_runtime`."""
    module = csrc.parent / f"_kernels_{instruction_set}.so"
    names = [f"-DMILEPOST_MODULE=_kernels_{instruction_set}", f"-DMILEPOST_{instruction_set.upper()}"]
    _compile(*flags(instruction_set), *names, "-shared", csrc / "module.cpp", runtime, "-o", module)
    return module


def build_runtime(folder: Path) -> Path:
    runtime = folder / "nanobind.o"
    _compile("-O0", "-w", "-c", Path(nanobind.source_dir()) / "nb_combined.cpp", "-o", runtime)
    return runtime


def flags(instruction_set: str) -> list[str]:
    """What CMakeLists.txt compiles the module with."""
    text = (ROOT / "CMakeLists.txt").read_text()
    stated = dict(re.findall(r'set\(FLAGS_(\w+) "?([^")]*)"?\)', text))
    (options,) = re.findall(r"target_compile_options\(_kernels_\$\{set\} PRIVATE (.*)\)", text)
    options = options.replace("${FLAGS_${set}}", stated[instruction_set])
    while "${" in options:
        options = re.sub(r"\$\{FLAGS_(\w+)\}", lambda found: stated[found[1]], options)
    return shlex.split(options)


def failures(module: Path, instruction_set: str, tests: Sequence[str], *options: str) -> list[str]:
    """The tests that fail with the module in the installed one's place. `tests`: paths below tests/; `options`:
    pytest's."""
    command = [sys.executable, HERE / "with_module.py", module, instruction_set, "-q", "--tb=no", "-rfE", *options]
    ran = subprocess.run(
        [*map(str, command), *(str(ROOT / "tests" / path) for path in tests)],
        cwd=ROOT,
        env={**os.environ, "OMP_WAIT_POLICY": "passive"},
        capture_output=True,
        text=True,
    )
    assert ran.returncode in (0, 1), f"the tests did not run to their end\n{ran.stdout}\n{ran.stderr}"
    return re.findall(r"^(?:FAILED|ERROR) (\S+)", ran.stdout, re.MULTILINE)


def _compile(*arguments: str | Path) -> None:
    base = Path(nanobind.include_dir())
    include = [sysconfig.get_path("include"), base, base.parent / "ext" / "robin_map" / "include"]
    common = [
        "g++",
        "-std=c++17",
        "-fPIC",
        "-fopenmp",
        "-fvisibility=hidden",
        "-DNDEBUG",
        *(f"-I{path}" for path in include),
    ]
    subprocess.run([*common, *map(str, arguments)], check=True)
