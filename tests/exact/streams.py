"""Random streams of sequences through a model: each is cut, packed, delayed and resumed by the seed, in memory that
others have left behind, and every row of logits must have the bits of the same row of a prompt read alone in one piece.

`read_stream(model, Stream(seed=...))` repeats itself: cases, steps, threads and memory are drawn from the seed.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from piecewise import NAN, Reader, Running

from milepost.engine.plain import logits_of
from milepost.models.base import Model
from milepost.ops import Rows
from milepost.specs import BLOCK_SIZE, CHUNK

MAX_RUNNING = 8
THREADS, THREAD_SHARES = (1, 2, 3), (6, 2, 2)
FINE_PLACES = (CHUNK, 512)
"""Multiples of these are where recurrences and attention begin anew."""
LEFT_BEHIND = (None, NAN, float("inf"), -1e30)
"""What memory is filled with once its sequence has ended; None: it keeps what it held."""


@dataclass(frozen=True)
class Stream:
    """`num_cases` sequences of at most `max_tokens` tokens below `vocab_size`, drawn from `seed`."""

    seed: int
    num_cases: int = 24
    max_tokens: int = 200
    vocab_size: int = 199


@dataclass(frozen=True)
class Case:
    """One sequence: the first tokens of a trunk, read in `pieces` after `points` grid points, whose states it takes
    from another that has read them (0: it reads from its first token on)."""

    name: str
    trunk: int
    pieces: tuple[int, ...]
    points: int = 0

    @property
    def num_tokens(self) -> int:
        return self.points * CHUNK + sum(self.pieces)


@dataclass(frozen=True)
class Done:
    """What a stream was made of."""

    num_cases: int
    num_resumed: int
    num_steps: int
    num_rows: int


def read_stream(model: Model, stream: Stream) -> Done:
    """AssertionError, which names the stream, the case, the rows and the batch, for the first rows that differ."""
    rng = random.Random(stream.seed)
    trunks = draw_trunks(rng, stream)
    cases = [draw_case(rng, str(i), stream, len(trunks)) for i in range(stream.num_cases)]
    expected = [alone(model, trunk) for trunk in trunks]
    run = Run(Memory(model, (MAX_RUNNING + 2) * (stream.max_tokens + CHUNK), rng), rng, cases, trunks)
    num_steps = num_rows = 0
    while batch := run.next_batch():
        num_threads = rng.choices(THREADS, THREAD_SHARES)[0]
        starts = {name: run.memory.num_read(name) for name in batch}
        with threads(num_threads):
            found = run.memory.read(batch)
        for name, logits in found.items():
            case, start = run.running[name], starts[name]
            wrong = differing(logits, expected[case.trunk][start : start + len(logits)], start)
            if wrong:
                others = {other: (starts[other], len(piece)) for other, piece in batch.items()}
                raise AssertionError(f"{wrong}\n{stream}\n{case}\nstep {num_steps}: {others}, {num_threads=}")
        run.end_finished()
        num_steps, num_rows = num_steps + 1, num_rows + sum(map(len, batch.values()))
    return Done(len(cases), run.num_resumed, num_steps, num_rows)


def alone(model: Model, tokens: Sequence[int]) -> torch.Tensor:
    """Logits of each row of a prompt that is read by itself, in one piece, by one thread."""
    with threads(1):
        logits = logits_of(model, tokens)
    assert logits.isfinite().all(), "a prompt read alone gives logits that are not finite"
    return logits


def differing(found: torch.Tensor, expected: torch.Tensor, start: int) -> str:
    """What is wrong with rows `found`, of which the first is at position `start`; empty if nothing is."""
    if torch.equal(found, expected):
        return ""
    rows = (found != expected).any(-1).nonzero().flatten() + start
    distance = (found - expected).abs().max()
    return f"rows {rows.tolist()} differ from those of the prompt read alone, by up to {distance:.3g}"


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def draw_trunks(rng: random.Random, stream: Stream) -> list[list[int]]:
    """Random prompts, of which some have left another at a grid point: who resumes may go on as the other did, or go
    another way."""

    def tokens(count: int) -> list[int]:
        return rng.choices(range(stream.vocab_size), k=count)

    trunks = [tokens(stream.max_tokens) for _ in range(max(1, stream.num_cases // 10))]
    for trunk in list(trunks):
        kept = rng.randint(1, stream.max_tokens // CHUNK) * CHUNK
        trunks.append(trunk[:kept] + tokens(stream.max_tokens - kept))
    return trunks


def draw_case(rng: random.Random, name: str, stream: Stream, num_trunks: int) -> Case:
    points = rng.randint(1, (stream.max_tokens - 1) // CHUNK) if rng.random() < 0.5 else 0
    start = points * CHUNK
    end = start + draw_length(rng, stream.max_tokens - start)
    return Case(name, rng.randrange(num_trunks), draw_pieces(rng, start, end), points)


def draw_length(rng: random.Random, most: int) -> int:
    """Few tokens, about as many as lead to a grid point, or any number."""
    kind = rng.random()
    if kind < 0.2:
        return rng.randint(1, min(most, 20))
    if kind < 0.5:
        return min(most, rng.randint(1, max(1, most // CHUNK)) * CHUNK + rng.randint(-1, 2))
    return rng.randint(1, most)


def draw_pieces(rng: random.Random, start: int, end: int) -> tuple[int, ...]:
    """A way of cutting tokens [start, end): whole, one by one, a prefill and then one by one, at or beside grid points,
    finely around a few places, in equal pieces, or in any."""
    count = end - start
    kind = rng.choice(("whole", "ones", "answer", "grid", "fine", "equal", "any", "any"))
    if kind == "whole":
        return (count,)
    if kind == "answer":
        answer = rng.randint(0, min(count - 1, 40))
        return (count - answer, *(1,) * answer)
    if kind == "ones" and count <= 150:
        return (1,) * count
    if kind == "equal":
        size = rng.choice((2, 3, 7, 16, 17, 31, 33, 63, 64, 65, 100, 129))
        return (*(size,) * (count // size), *([count % size] if count % size else []))
    return tuple(_any_pieces(rng, start, end, kind))


def _any_pieces(rng: random.Random, start: int, end: int, kind: str) -> Iterator[int]:
    place = rng.choice(FINE_PLACES)
    while start < end:
        to_place = place - start % place
        if kind == "grid":
            size = CHUNK * rng.choice((1, 1, 2)) - start % CHUNK + rng.choice((0, 0, 0, -1, 1))
        elif kind == "fine":
            size = rng.randint(1, 20) if to_place < 20 else to_place - rng.randint(1, 20)
        else:
            size = rng.choice((1, 1, 2, rng.randint(1, 20), rng.randint(1, end - start)))
        size = min(max(size, 1), end - start)
        yield size
        start += size


class Memory(Reader):
    """A reader whose sequences may start from grid points of others, and whose memory is used again."""

    def __init__(self, model: Model, max_tokens: int, rng: random.Random) -> None:
        super().__init__(model, max_tokens, MAX_RUNNING)
        self.rng = rng

    def num_read(self, name: str) -> int:
        return self.running[name].num_tokens if name in self.running else 0

    def fork(self, name: str, of: str, points: int) -> bool:
        """Starts a sequence from a grid point of another, which goes on. False if no state is kept there."""
        old = self.running.get(of)
        if old is None or points >= len(old.states) or old.states[points] < 0:
            return False
        tokens = points * CHUNK
        blocks, states = old.blocks[: tokens // BLOCK_SIZE], old.states[: points + 1]
        self.running[name] = Running(self.free_windows.pop(), tokens, blocks, states)
        return True

    def end(self, name: str) -> None:
        """Ends a sequence. What no other uses is free, filled with something or left as it is."""
        old, others = self.running.pop(name), self.running.values()
        blocks = [block for block in old.blocks if all(block not in one.blocks for one in others)]
        slots = [slot for slot in old.states if slot > 0 and all(slot not in one.states for one in others)]
        fill = self.rng.choice(LEFT_BEHIND)
        if fill is not None:
            self._fill(blocks, slots, old.window, fill)
        self.free_blocks += blocks
        self.free_slots += slots
        self.free_windows.append(old.window)
        self.rng.shuffle(self.free_blocks)
        self.rng.shuffle(self.free_slots)

    def _fill(self, blocks: list[int], slots: list[int], window: int, value: float) -> None:
        for layer in self.kv:
            if layer is not None:
                layer.k[blocks], layer.v[blocks] = value, value
        for state in self.recurrent:
            for tensor in state.checkpoint.values() if state else ():
                tensor[slots] = value
            for tensor in state.window.values() if state else ():
                tensor[window] = value

    def _rows(self, name: str, num_tokens: int) -> Rows:
        """As before, but some of the states that the sequence can do without are not kept (-1)."""
        rows, one = super()._rows(name, num_tokens), self.running[name]
        grid_slots, first = list(rows.grid_slots), rows.start // CHUNK + 1
        for i in range(len(grid_slots) - 1):
            if self.rng.random() < 0.3:
                self.free_slots.append(grid_slots[i])
                grid_slots[i] = one.states[first + i] = -1
        return Rows(rows.start, rows.end, rows.block_table, rows.state_slot, rows.window_slot, grid_slots)


class Run:
    """Which cases wait, which are being read, and what comes next."""

    def __init__(
        self, memory: Memory, rng: random.Random, cases: Sequence[Case], trunks: Sequence[Sequence[int]]
    ) -> None:
        self.memory, self.rng, self.waiting, self.trunks = memory, rng, list(cases), trunks
        self.running: dict[str, Case] = {}
        self.left: dict[str, list[int]] = {}
        self.num_resumed = 0

    def next_batch(self) -> Mapping[str, Sequence[int]]:
        """The next tokens of some of the sequences, in any order; empty when all are read."""
        self._admit()
        names = [name for name in self.running if self.rng.random() < 0.8] or list(self.running)
        self.rng.shuffle(names)
        batch = {}
        for name in names:
            start = self.memory.num_read(name)
            batch[name] = self.trunks[self.running[name].trunk][start : start + self.left[name].pop(0)]
        return batch

    def end_finished(self) -> None:
        for name in [name for name, pieces in self.left.items() if not pieces]:
            self.memory.end(name)
            del self.running[name], self.left[name]

    def _admit(self) -> None:
        """Starts waiting cases while there is room. One that would resume waits as long as others may bring what it
        needs; if none does, it reads all by itself."""
        for case in list(self.waiting):
            if len(self.running) == MAX_RUNNING or (self.running and self.rng.random() < 0.3):
                return
            sources = [other.name for other in self.running.values() if self._brings(other, case)]
            resumed = case.points > 0 and any(self.memory.fork(case.name, of, case.points) for of in sources)
            if case.points and sources and not resumed:
                continue
            self.num_resumed += resumed
            self.waiting.remove(case)
            self.running[case.name] = case
            self.left[case.name] = [*([] if resumed or not case.points else [case.points * CHUNK]), *case.pieces]

    def _brings(self, other: Case, case: Case) -> bool:
        """Whether `other` reads what `case` would not read itself."""
        size = case.points * CHUNK
        return other.num_tokens >= size and self.trunks[other.trunk][:size] == self.trunks[case.trunk][:size]
