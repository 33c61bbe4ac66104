"""What `milepost bench` measures: the engine as the server runs it, on random token ids, prefix caching off."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from milepost.engine.engine import Engine
from milepost.engine.inputs import PromptTokens
from milepost.sampling_params import SamplingParams

PREFILL_LENGTHS = (512, 2048, 4096)
DECODE_BATCHES = (1, 8)
DECODE_TOKENS = 64
DECODE_PROMPT = 32
BURST = (16, 512, 64)
"""Requests at once, prompt tokens and answer tokens of each."""


@dataclass(frozen=True)
class Measurement:
    """The median of `repeats` runs. `value` in `unit`; `spread` is (slowest - fastest) / median."""

    name: str
    value: float
    unit: str
    spread: float


class Bench:
    """Drives one engine. Every prompt is fresh random ids, so that nothing is ever a repeat."""

    def __init__(
        self,
        engine: Engine,
        repeats: int,
        seed: int = 0,
        clock: Callable[[], float] = time.perf_counter,
    ):
        self.engine, self.repeats, self.clock = engine, repeats, clock
        self._rng = random.Random(seed)
        self._num_requests = 0

    def run(self) -> Iterator[Measurement]:
        """Yields each measurement as it is done; lengths over the model's context are left out."""
        self._prefill(64)  # the first pass pays for page faults and thread start
        context = self.engine.model.max_model_len
        for length in PREFILL_LENGTHS:
            if length < context:
                yield self._measure(f"prefill {length}", "tok/s", partial(self._prefill_rate, length))
        for batch in DECODE_BATCHES:
            yield self._measure(f"decode, batch {batch}", "tok/s", partial(self._decode_rate, batch))
        num, prompt, answer = BURST
        if prompt + answer <= context:
            yield self._measure(f"{num} x ({prompt} + {answer})", "s", partial(self._burst, num, prompt, answer))

    def _measure(self, name: str, unit: str, once: Callable[[], float]) -> Measurement:
        values = [once() for _ in range(self.repeats)]
        median = statistics.median(values)
        return Measurement(name, median, unit, (max(values) - min(values)) / median)

    def _prefill(self, num_tokens: int) -> float:
        """Seconds from a prompt's arrival to its first token."""
        self._add(num_tokens, 1)
        return self._drain()

    def _prefill_rate(self, num_tokens: int) -> float:
        return num_tokens / self._prefill(num_tokens)

    def _decode_rate(self, batch: int) -> float:
        """Tokens a second over `DECODE_TOKENS` steps in which every request of the batch gets one."""
        for _ in range(batch):
            self._add(DECODE_PROMPT, DECODE_TOKENS + 1)
        while any(state.samples[0].seq.num_output_tokens < 1 for state in self.engine.requests.values()):
            self.engine.step()
        return batch * DECODE_TOKENS / self._drain()

    def _burst(self, num: int, prompt: int, answer: int) -> float:
        for _ in range(num):
            self._add(prompt, answer)
        return self._drain()

    def _drain(self) -> float:
        start = self.clock()
        while self.engine.has_work:
            self.engine.step()
        return self.clock() - start

    def _add(self, num_tokens: int, max_tokens: int) -> None:
        ids = [self._rng.randrange(self.engine.model.vocab_size) for _ in range(num_tokens)]
        self._num_requests += 1
        params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True, detokenize=False)
        self.engine.add(f"bench-{self._num_requests}", PromptTokens(None, ids), params)
