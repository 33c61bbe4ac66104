"""Which engines can be compared, how each is started, and with which settings it is at its best."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path

from milepost.machine import SPINS

TCMALLOC = "/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4"
OURS = "milepost"


@dataclass(frozen=True)
class EngineKind:
    """`python` and `model` are paths below the peers' folder; no `python`: the one that runs this. `{root}` in
    `options` and `env` stands for that folder."""

    adaptor: str
    model: str
    python: str | None = None
    options: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    reuses: bool = True
    """Whether it can keep anything of one request for the next."""


VLLM_ENV = {
    "LD_PRELOAD": f"{TCMALLOC}:{{root}}/vllm/lib/libiomp5.so",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "3",
}

ENGINES = {
    OURS: EngineKind("milepost", "hf", env={"GOMP_SPINCOUNT": SPINS}),
    "transformers": EngineKind("transformers", "hf", reuses=False),
    "vllm": EngineKind("vllm", "hf", "vllm/bin/python", env=VLLM_ENV),
    "vllm-eager": EngineKind("vllm", "hf", "vllm/bin/python", ("eager=1",), VLLM_ENV),
    "openvino": EngineKind("openvino", "openvino-fp16", "openvino/bin/python"),
    "openvino-sdpa": EngineKind("openvino", "openvino-fp16", "openvino/bin/python", ("backend=SDPA",), reuses=False),
    "llama": EngineKind("llama", "bf16.gguf", options=("server={root}/llama/build/bin/llama-server",)),
}


def command(name: str, root: Path, shape: str, threads: int, prefix_caching: bool) -> list[str]:
    """The command line of an engine's process."""
    kind = ENGINES[name]
    python = sys.executable if kind.python is None else str(root / kind.python)
    line = [python, "-m", f"bench.peers.{kind.adaptor}", "--model", str(root / "models" / shape / kind.model)]
    line += ["--threads", str(threads)]
    line += ["--prefix-caching"] if prefix_caching else []
    for option in kind.options:
        line += ["--set", option.format(root=root)]
    return line


def environment(name: str, root: Path, threads: int) -> dict[str, str]:
    """What its process finds in its environment, besides what is there."""
    env = {key: value.format(root=root) for key, value in ENGINES[name].env.items()}
    return {"OMP_NUM_THREADS": str(threads), **env}
