"""What is measured, in words that every adaptor understands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

PREFILL_LENGTHS = (512, 2048, 4096)
DECODE_BATCHES = (1, 8)
DECODE_PROMPT, DECODE_TOKENS = 32, 64
BURST = {"requests": 16, "prompt": 512, "answer": 64}
REPEATED = {"tokens": 3000, "shared": 3000}
PARTED = {"tokens": 2064, "shared": 2000}
MAX_REPEATS_OF_BURST = 3
LEAST = {"tokens": 4, "shared": 4, "prompt": 4, "answer": 4, "requests": 2, "batch": 1}


@dataclass(frozen=True)
class Measure:
    """`unit` "tok/s": work over seconds, the more the better; "ms": a time, the less the better."""

    name: str
    op: str
    arguments: Mapping[str, int]
    unit: str = "tok/s"
    max_repeats: int = 1000

    def value(self, answer: Mapping[str, float]) -> float:
        return 1e3 * answer["seconds"] if self.unit == "ms" else answer["work"] / answer["seconds"]

    def ratio(self, ours: float, theirs: float) -> float:
        """How many times as fast as theirs."""
        return theirs / ours if self.unit == "ms" else ours / theirs

    def shrunk(self, divisor: int) -> Measure:
        """The same with sizes divided: to see whether an engine answers at all."""
        small = {name: max(LEAST[name], value // divisor) for name, value in self.arguments.items()}
        return Measure(self.name, self.op, small, self.unit, self.max_repeats)


THROUGHPUT = (
    *(Measure(f"prefill {n}", "prefill", {"tokens": n}) for n in PREFILL_LENGTHS),
    *(
        Measure(f"decode, batch {n}", "decode", {"batch": n, "prompt": DECODE_PROMPT, "tokens": DECODE_TOKENS})
        for n in DECODE_BATCHES
    ),
    Measure("16 x (512 + 64)", "burst", BURST, max_repeats=MAX_REPEATS_OF_BURST),
)
"""Every prompt is fresh, and prefix caching is off."""

REUSE = (
    Measure("first token, 3,000 repeated", "reuse", REPEATED, "ms"),
    Measure("first token, 2,000 of 2,064 shared", "reuse", PARTED, "ms"),
)
"""Prefix caching is on; the prompt that is shared was sent once before."""
