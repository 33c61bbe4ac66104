"""A desk where prompts are answered: the real scheduler and cache, and a runner that only makes up tokens.

Sizes are in tokens of KV: a block takes 16 bytes. Whether reuse is right is not asked here (see simulated_engine.py),
but how much is reused.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from milepost.cache.memory import Memory
from milepost.cache.prefix_cache import PrefixCache
from milepost.cache.retention import Retention
from milepost.engine.scheduler import Scheduler, Step
from milepost.request import Sequence
from milepost.sampling_params import SamplingParams


@dataclass(frozen=True)
class Shape:
    """Bytes of a block and of a state; `unit`: tokens between places where such a model can resume."""

    name: str
    block_bytes: int
    state_bytes: int

    @property
    def unit(self) -> int:
        return 64 if self.state_bytes else 16

    def bytes(self, num_tokens: float, num_states: int) -> int:
        """KV of so many tokens, and so many states."""
        return int(num_tokens / 16 * self.block_bytes) + num_states * self.state_bytes

    def floor(self, num_tokens: int) -> int:
        return num_tokens // self.unit * self.unit


LARGE = Shape("large states", 16, 1590)
SMALL = Shape("small states", 16, 20)
ATTENTION = Shape("attention", 16, 0)
STATES = Shape("states alone", 0, 1590)
SHAPES = [LARGE, SMALL, ATTENTION, STATES]
PLENTY = 100_000_000


class Desk:
    def __init__(
        self,
        shape: Shape,
        limit_bytes: int = PLENTY,
        *,
        interval: int | None = None,
        budget: int = 2048,
        seats: int = 10,
        seed: int = 0,
        memory: Memory | None = None,
    ) -> None:
        memory = memory or Memory(limit_bytes, shape.block_bytes, shape.state_bytes)
        self.cache = PrefixCache(memory, num_seqs=seats, retention=Retention(interval))
        self.work = Scheduler(self.cache, max_num_batched_tokens=budget, max_num_seqs=seats)
        self.rng = random.Random(seed)
        self._num_asked = 0

    def text(self, num_tokens: int) -> list[int]:
        """Tokens that nobody has seen."""
        return [self.rng.randrange(1 << 31) for _ in range(num_tokens)]

    def send(
        self,
        prompt: list[int],
        *,
        every_row: bool = False,
        boundaries: tuple[int, ...] = (),
        breakpoints: tuple[int, ...] = (),
        salt: str = "",
    ) -> Sequence:
        """Puts a prompt in line."""
        self._num_asked += 1
        params = SamplingParams(prompt_logprobs=0 if every_row else None)
        name, prompt = str(self._num_asked), list(prompt)
        seq = Sequence(
            name, prompt, len(prompt), params, boundaries=boundaries, breakpoints=breakpoints, cache_salt=salt
        )
        self.work.add(seq)
        return seq

    def step(self) -> Step:
        step = self.work.schedule(0.0)
        self.work.advance(step)
        for piece in step.pieces:
            if piece.samples:
                piece.seq.tokens += self.text(1)
        return step

    def answer(self, seq: Sequence, num_tokens: int = 1) -> Sequence:
        """Steps until `seq` has so many tokens of an answer, and ends it."""
        while seq.num_output_tokens < num_tokens:
            self.step()
        self.work.finish(seq, "stop")
        return seq

    def ask(self, prompt: list[int], num_tokens: int = 1) -> Sequence:
        return self.answer(self.send(prompt), num_tokens)
