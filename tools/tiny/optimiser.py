"""Muon for the matrices inside the layers, AdamW for all else; a warm-up, a plateau, a fall to almost nothing."""

from __future__ import annotations

import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from tools.tiny.model import TinyModel

MUON_RATE, ADAMW_RATE, VECTOR_RATE = 0.02, 0.003, 0.002
WARM_UP, FALL = 0.02, 0.35
"""Parts of the whole run."""
LOWEST = 0.02
MAX_NORM = 1.0


class Optimiser:
    """All rates follow one schedule of `progress`, the part of the run that is done, 0 to 1."""

    def __init__(self, model: TinyModel, scale: float = 1.0, num_threads: int = 1) -> None:
        named = list(model.named_parameters())
        matrices = [p for name, p in named if p.ndim == 2 and "embed_tokens" not in name]
        vectors = [p for _, p in named if p.ndim != 2]
        embedding = [p for name, p in named if "embed_tokens" in name]
        self._threads = ThreadPoolExecutor(num_threads, "optimiser", torch.set_num_threads, (1,))
        self._all = [p for _, p in named]
        self._parts: list[torch.optim.Optimizer] = [
            *(
                torch.optim.Muon(some, lr=MUON_RATE * scale, weight_decay=0.05, momentum=0.95, ns_steps=3)
                for some in (matrices[::2], matrices[1::2])
            ),
            torch.optim.AdamW(
                [
                    {"params": embedding, "lr": ADAMW_RATE * scale, "weight_decay": 0.01},
                    {"params": vectors, "lr": VECTOR_RATE * scale, "weight_decay": 0.0},
                ],
                betas=(0.9, 0.98),
            ),
        ]
        self._rates = [group["lr"] for group in self._groups()]

    def step(self, progress: float) -> float:
        """One update from the gradients, which are then cleared; returns their norm before clipping. Gradients that are
        not finite are cleared alone."""
        norm = float(torch.nn.utils.clip_grad_norm_(self._all, MAX_NORM))
        for group, rate in zip(self._groups(), self._rates, strict=True):
            group["lr"] = rate * rate_at(progress)
        if math.isfinite(norm):
            list(self._threads.map(lambda part: part.step(), self._parts))
        for part in self._parts:
            part.zero_grad(set_to_none=True)
        return norm

    def state_dict(self) -> list[dict[str, Any]]:
        return [part.state_dict() for part in self._parts]

    def load_state_dict(self, states: list[dict[str, Any]]) -> None:
        for part, state in zip(self._parts, states, strict=True):
            part.load_state_dict(state)

    def _groups(self) -> Iterator[dict[str, Any]]:
        for part in self._parts:
            yield from part.param_groups


def rate_at(progress: float) -> float:
    """The factor of all rates."""
    rise = min(1.0, (progress + 1e-3) / WARM_UP)
    fall = min(1.0, LOWEST + (1 - LOWEST) * max(0.0, 1 - progress) / FALL)
    return rise * fall
