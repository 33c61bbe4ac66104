"""Milepost itself, measured as the others are."""

from __future__ import annotations

from typing import Any

import torch

import milepost
from bench.kernel_times import KernelTimes
from bench.peers.child import Prompts, Runs, Settings, main
from milepost.config import EngineConfig
from milepost.engine.build import build_engine
from milepost.engine.inputs import PromptTokens
from milepost.ops import Target, bind
from milepost.ops.cpu import library
from milepost.sampling_params import RequestOutputKind, SamplingParams

GEMM_OPERATIONS = 2e11
"""Of one timing of the matrix kernel: some tenths of a second."""


class Milepost:
    """The engine's own loop, stepped."""

    def __init__(self, settings: Settings) -> None:
        self.engine = build_engine(
            EngineConfig(
                model=str(settings.model),
                dtype="bfloat16",
                max_model_len=settings.context,
                enable_prefix_caching=settings.prefix_caching,
                num_threads=settings.threads,
            )
        )
        self.vocab_size = self.engine.model.vocab_size
        self.cached: int | None = None
        self.about = {"version": milepost.__version__, "threads": torch.get_num_threads(), "kernels": library.chosen()}

    def add(self, number: int, ids: list[int], max_tokens: int) -> None:
        params = SamplingParams(
            temperature=0.0,
            max_tokens=max_tokens,
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )
        self.engine.add(str(number), PromptTokens(None, ids), params)

    def step(self) -> list[int]:
        outputs = self.engine.step()
        for output in outputs:
            self.cached = output.num_cached_tokens
        return [int(output.request_id) for output in outputs for _ in output.outputs[0].token_ids]

    def busy(self) -> bool:
        return self.engine.has_work


class MilepostRuns(Runs):
    """The common runs, and what only Milepost is asked: its matrix kernel, and the time outside of kernels."""

    engine: Milepost

    def gemm(self, rows: int, size_in: int, size_out: int) -> dict[str, Any]:
        """work: operations, two for each weight and row."""
        ops, _ = bind(Target(torch.device("cpu"), torch.bfloat16))
        weight = ops.pack(torch.randn(size_out, size_in, dtype=torch.bfloat16))
        x = torch.randn(rows, size_in, dtype=torch.bfloat16)
        ops.linear(x, weight)
        repeats = max(1, round(GEMM_OPERATIONS / (2 * rows * size_in * size_out)))
        start = self.clock()
        for _ in range(repeats):
            ops.linear(x, weight)
        return {"seconds": self.clock() - start, "work": 2 * rows * size_in * size_out * repeats}

    def outside_kernels(self, batch: int, prompt: int, tokens: int) -> dict[str, Any]:
        """A decode run whose kernel calls are timed one by one. seconds: outside of them; work: all seconds."""
        clock, marks, times = self.clock, [], KernelTimes()

        def marking() -> float:
            """The clock, which is read where the steps begin and end: prompts are read before."""
            marks.append(times.total)
            return clock()

        with times.of(self.engine.engine):
            self.decode(batch, prompt, tokens)  # what is recorded is recorded here
            self.clock = marking
            try:
                found = self.decode(batch, prompt, tokens)
            finally:
                self.clock = clock
        return {"seconds": found["seconds"] - (marks[-1] - marks[0]), "work": found["seconds"]}


def make(settings: Settings) -> MilepostRuns:
    engine = Milepost(settings)
    return MilepostRuns(engine, Prompts(engine.vocab_size))


if __name__ == "__main__":
    main(make)
