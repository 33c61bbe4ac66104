"""Training speed of a few shapes: `python -m tools.tiny.speed`. One thread; tokens per second of processor time.

Processor time, not the clock: what else runs on the machine then counts little.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F

from tools.tiny.model import Shape, TinyModel

SHAPES = {
    "chosen": Shape(),
    "deeper": Shape(num_layers=6),
    "by torch": Shape(key_dim=48, value_dim=48),
}
ANSWERED = 8
"""One token in so many is one of an answer, as in the training's batches."""


def tokens_per_second(shape: Shape, rows: int, length: int, narrow: bool, compiled: bool, repeats: int = 3) -> float:
    """Forward and backward passes, no update; the best of `repeats`."""
    model = TinyModel(shape)
    hidden: Callable[[torch.Tensor], torch.Tensor] = torch.compile(model.hidden) if compiled else model.hidden
    ids = torch.randint(0, shape.vocab_size, (rows, length), generator=torch.Generator().manual_seed(0))

    def step() -> float:
        start = time.process_time()
        with torch.autocast("cpu", torch.bfloat16, enabled=narrow):
            answers = hidden(ids)[:, ::ANSWERED].flatten(0, 1)
        torch.autograd.backward(F.cross_entropy(model.logits(answers.float()), ids[:, ::ANSWERED].flatten()))
        return time.process_time() - start

    step()
    return rows * length / min(step() for _ in range(repeats))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=4096, help="in a batch")
    parser.add_argument("--compile", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    for name, shape in SHAPES.items():
        weights = sum(parameter.numel() for parameter in TinyModel(shape).parameters())
        for length in (256, 2048):
            for narrow in (True, False):
                speed = tokens_per_second(shape, args.tokens // length, length, narrow, args.compile)
                print(
                    f"{name:>8} {weights / 1e6:.2f} M, {length} tokens, {'bf16' if narrow else 'fp32'}: {speed:.0f}/s"
                )


if __name__ == "__main__":
    main()
