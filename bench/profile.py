"""Where the time of a prompt goes in Milepost, kernel by kernel.

    python -m bench.profile SHAPE [--rows 512,2048] [--threads 2]

Prompts of random tokens, random bf16 weights, prefix caching off. Products tell how many operations they did a second.
"""

from __future__ import annotations

import argparse
import random
import time

import torch

from bench.kernel_times import KernelTimes
from milepost.bench import shapes
from milepost.config import EngineConfig
from milepost.engine.build import assemble
from milepost.engine.engine import Engine
from milepost.engine.inputs import PromptTokens
from milepost.models.loader.load import load_model
from milepost.models.loader.random_weights import random_source
from milepost.sampling_params import SamplingParams

ROUNDS = 3
SHOWN = 16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", choices=shapes.names())
    parser.add_argument("--rows", default="512,2048", help="lengths of prompts")
    parser.add_argument("--threads", type=int, default=2)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    lengths = [int(length) for length in asked.rows.split(",")]
    loaded = load_model(random_source(shapes.config_of(asked.shape), asked.shape), torch.bfloat16)
    settings = EngineConfig(max_num_seqs=1, max_model_len=max(lengths) + 1, enable_prefix_caching=False)
    prompts = Prompts(assemble(loaded, settings))
    for length in lengths:
        prompts.read(length)
        rates = [length / prompts.read(length) for _ in range(ROUNDS)]
        times = KernelTimes()
        with times.of(prompts.engine):
            seconds = prompts.read(length)
        rate, inside = sorted(rates)[ROUNDS // 2], times.total / seconds
        print(f"{asked.shape}, {length} tokens: {rate:.0f} tok/s, in kernels {inside:.1%}")
        for name, spent in sorted(times.seconds.items(), key=lambda item: -item[1])[:SHOWN]:
            speed = (
                f"{_operations(name) * length * times.calls[name] / spent / 1e9:8.0f} GFLOP/s" if " " in name else ""
            )
            print(f"  {name:28}{1e3 * spent:9.1f} ms {spent / seconds:6.1%}{times.calls[name]:5} calls{speed}")


class Prompts:
    """Sends one after the other."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self._random, self._count = engine, random.Random(0), 0

    def read(self, length: int) -> float:
        """Seconds to the first token of a prompt of `length` tokens."""
        self._count += 1
        ids = [self._random.randrange(self.engine.model.vocab_size) for _ in range(length)]
        start = time.perf_counter()
        self.engine.add(str(self._count), PromptTokens(None, ids), SamplingParams(max_tokens=1, detokenize=False))
        while self.engine.has_work:
            self.engine.step()
        return time.perf_counter() - start


def _operations(name: str) -> int:
    """Of a product, for each row."""
    size_in, size_out = name.split()[1].split("x")
    return 2 * int(size_in) * int(size_out)


if __name__ == "__main__":
    main()
