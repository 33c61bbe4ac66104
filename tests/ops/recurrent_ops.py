"""What the tests of the recurrent ops share: the ops with their textbook recurrences, and a pool that runs sequences
piece by piece in memory full of NaN."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

import torch

from milepost.ops import ForwardBatch, Rows
from milepost.ops import torch as reference
from milepost.specs import CHUNK

Tensors = tuple[torch.Tensor, ...]
Buffers = Mapping[str, torch.Tensor]
NAN = float("nan")
WEAK, MIDDLE, STRONG = 0.01, 0.5, 5.0


class Case(Protocol):
    """A recurrent op with sizes and weights. Rows' inputs are tensors [rows, ...]."""

    dtype: torch.dtype

    def shapes(self) -> tuple[dict[str, tuple[int, ...]], dict[str, tuple[int, ...]]]:
        """Shapes of one slot of each checkpoint buffer and of each window buffer, in the op's order."""

    def draw(self, num_rows: int, generator: torch.Generator) -> Tensors: ...

    def run(self, inputs: Tensors, checkpoint: Buffers, window: Buffers, batch: ForwardBatch) -> torch.Tensor: ...

    def textbook(self, inputs: Tensors) -> Tensors:
        """In float64, row by row: outputs [rows, ...], and the state before each row and after the last."""

    def num_valid(self, offset: int) -> dict[str, int]:
        """By window buffer, how many entries hold something when `offset` rows (> 0) have come since the grid point;
        a buffer that is not named is valid whole."""


@contextmanager
def one_thread() -> Iterator[None]:
    """Tiny tensors gain nothing from a second thread, and wait for it on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def pick(shape: tuple[int, ...], generator: torch.Generator, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


@dataclass(frozen=True)
class Conv:
    channels: int = 5
    taps: int = 4
    bias: bool = True
    dtype: torch.dtype = torch.float32

    def weights(self) -> tuple[torch.Tensor, torch.Tensor | None]:
        generator = torch.Generator().manual_seed(self.taps)
        weight = pick((self.channels, self.taps), generator, self.dtype)
        return weight, pick((self.channels,), generator, self.dtype) if self.bias else None

    def shapes(self) -> tuple[dict[str, tuple[int, ...]], dict[str, tuple[int, ...]]]:
        before = self.taps - 1
        return {"conv": (before, self.channels)}, {"conv": (before + CHUNK, self.channels)}

    def draw(self, num_rows: int, generator: torch.Generator) -> Tensors:
        return (pick((num_rows, self.channels), generator, self.dtype),)

    def run(self, inputs: Tensors, checkpoint: Buffers, window: Buffers, batch: ForwardBatch) -> torch.Tensor:
        return reference.causal_conv(*inputs, *self.weights(), checkpoint["conv"], window["conv"], batch)

    def textbook(self, inputs: Tensors) -> Tensors:
        x, (weight, bias) = inputs[0].double(), self.weights()
        out, states = [], [torch.zeros(self.taps - 1, self.channels, dtype=torch.float64)]
        for row in x:
            last = torch.cat([states[-1], row[None]])
            out.append((weight.double().T * last).sum(0) + (0 if bias is None else bias.double()))
            states.append(last[1:])
        return torch.stack(out), torch.stack(states)

    def num_valid(self, offset: int) -> dict[str, int]:
        return {"conv": self.taps - 1 + offset}


@dataclass(frozen=True)
class PerHead:
    """Mamba-2, or with `delta` the gated delta rule. `decay`: the mean of -log_g, which lies within half of it around
    it, or with `mixed` is anything from 0 to twice."""

    delta: bool
    heads: int = 4
    groups: int = 2
    k_size: int = 8
    v_size: int = 6
    decay: float = WEAK
    mixed: bool = False
    dtype: torch.dtype = torch.float32

    def shapes(self) -> tuple[dict[str, tuple[int, ...]], dict[str, tuple[int, ...]]]:
        state = {"state": (self.heads, self.k_size, self.v_size)}
        k, u = (CHUNK, self.groups, self.k_size), (CHUNK, self.heads, self.v_size)
        return state, {"k": k, "u": u, "log_g": (CHUNK, self.heads)}

    def draw(self, num_rows: int, generator: torch.Generator) -> Tensors:
        q, k = (pick((num_rows, self.groups, self.k_size), generator, torch.float64) for _ in range(2))
        if self.delta:
            q, k = (torch.nn.functional.normalize(t, dim=-1) for t in (q, k))
        v = pick((num_rows, self.heads, self.v_size), generator, torch.float64)
        spread, beta = torch.rand(2, num_rows, self.heads, generator=generator, dtype=torch.float64)
        log_g = -self.decay * (2 * spread if self.mixed else 0.5 + spread)
        drawn = (q, k, v, log_g, beta)[: 5 if self.delta else 4]
        return tuple(t.to(self.dtype) for t in drawn)

    def run(self, inputs: Tensors, checkpoint: Buffers, window: Buffers, batch: ForwardBatch) -> torch.Tensor:
        op = reference.gated_delta if self.delta else reference.mamba2
        return op(*inputs, checkpoint["state"], window["k"], window["u"], window["log_g"], batch)

    def textbook(self, inputs: Tensors) -> Tensors:
        q, k, v, log_g, *beta = (t.double() for t in inputs)
        q, k = (t.repeat_interleave(self.heads // self.groups, 1) for t in (q, k))
        s = torch.zeros(self.heads, self.k_size, self.v_size, dtype=torch.float64)
        out, states = [], [s]
        for t in range(q.shape[0]):
            s = s * log_g[t].exp()[:, None, None]
            u = v[t]
            if beta:
                u = beta[0][t][:, None] * (u - torch.einsum("hk,hkv->hv", k[t], s))
            s = s + torch.einsum("hk,hv->hkv", k[t], u)
            out.append(torch.einsum("hk,hkv->hv", q[t], s))
            states.append(s)
        return torch.stack(out), torch.stack(states)

    def num_valid(self, offset: int) -> dict[str, int]:
        return {"k": offset, "u": offset, "log_g": offset}


@dataclass(frozen=True)
class Scan:
    """Mamba-1. `decay`: the mean of -dt a."""

    channels: int = 6
    size: int = 4
    decay: float = WEAK
    dtype: torch.dtype = torch.float32

    def rates(self) -> torch.Tensor:
        generator = torch.Generator().manual_seed(self.size)
        return (-torch.rand(self.channels, self.size, generator=generator) - 0.1).to(self.dtype)

    def shapes(self) -> tuple[dict[str, tuple[int, ...]], dict[str, tuple[int, ...]]]:
        return {"state": (self.channels, self.size)}, {"last": (self.channels, self.size)}

    def draw(self, num_rows: int, generator: torch.Generator) -> Tensors:
        x, dt = (pick((num_rows, self.channels), generator, self.dtype) for _ in range(2))
        b, c = (pick((num_rows, self.size), generator, self.dtype) for _ in range(2))
        return x, dt.abs() * 2 * self.decay, b, c

    def run(self, inputs: Tensors, checkpoint: Buffers, window: Buffers, batch: ForwardBatch) -> torch.Tensor:
        x, dt, b, c = inputs
        return reference.selective_scan(x, dt, self.rates(), b, c, checkpoint["state"], window["last"], batch)

    def textbook(self, inputs: Tensors) -> Tensors:
        (x, dt, b, c), a = (t.double() for t in inputs), self.rates().double()
        h = torch.zeros(self.channels, self.size, dtype=torch.float64)
        out, states = [], [h]
        for t in range(x.shape[0]):
            h = torch.exp(dt[t][:, None] * a) * h + torch.outer(dt[t] * x[t], b[t])
            out.append(h @ c[t])
            states.append(h)
        return torch.stack(out), torch.stack(states)

    def num_valid(self, offset: int) -> dict[str, int]:
        return {}


@dataclass
class Running:
    """One sequence: all its inputs, the truth, and how far it is. `slots`: its written checkpoints by position."""

    inputs: Tensors
    truth: torch.Tensor
    states: torch.Tensor
    window_slot: int
    computed: int = 0
    state_slot: int = 0
    slots: dict[int, int] = field(default_factory=dict)
    out: list[torch.Tensor] = field(default_factory=list)

    @property
    def left(self) -> int:
        return self.truth.shape[0] - self.computed


class Pool:
    """Buffers of NaN, checkpoint 0 apart, and sequences that run in them. Every step checks what the op wrote."""

    def __init__(self, case: Case, generator: torch.Generator, num_slots: int = 40, num_windows: int = 12) -> None:
        self.case, self.generator = case, generator
        state, window = case.shapes()
        self.checkpoint = {n: torch.full((num_slots, *shape), NAN, dtype=case.dtype) for n, shape in state.items()}
        self.window = {n: torch.full((num_windows, *shape), NAN, dtype=case.dtype) for n, shape in window.items()}
        for buffer in self.checkpoint.values():
            buffer[0] = 0
        self.free_slots = [s + 1 for s in torch.randperm(num_slots - 1, generator=generator).tolist()]
        self.free_windows = torch.randperm(num_windows, generator=generator).tolist()
        self.worst_state = 0.0

    def start(self, inputs: Tensors, computed: int = 0, state_slot: int = 0) -> Running:
        """A new sequence; with `computed`, one that resumes from a checkpoint of somebody else."""
        out, states = self.case.textbook(inputs)
        return Running(inputs, out, states, self.free_windows.pop(), computed, state_slot)

    def flip(self) -> bool:
        return bool(torch.randint(2, (1,), generator=self.generator))

    def release(self, slot: int) -> None:
        for buffer in self.checkpoint.values():
            buffer[slot] = NAN
        self.free_slots.insert(0, slot)

    def step(self, pieces: Sequence[tuple[Running, int]], wanted: Callable[[], bool] = lambda: True) -> None:
        """Run the next rows of each sequence. Grid points are stored if `wanted`, and where the sequence goes on."""
        rows, written = [], {}
        for running, count in pieces:
            end = running.computed + count
            slots = []
            for point in range((running.computed // CHUNK + 1) * CHUNK, end + 1, CHUNK):
                needed = running.left > count and point == end // CHUNK * CHUNK
                slots.append(self.free_slots.pop() if needed or wanted() else -1)
                if slots[-1] > 0:
                    written[slots[-1]] = (running, point)
            rows.append(Rows(running.computed, end, [0] * 100, running.state_slot, running.window_slot, slots))
            self.void(running)
        before = {n: t.clone() for n, t in self.checkpoint.items()}, {n: t.clone() for n, t in self.window.items()}
        packed = tuple(
            torch.cat([r.inputs[i][r.computed : r.computed + n] for r, n in pieces])
            for i in range(len(pieces[0][0].inputs))
        )
        out = self.case.run(packed, self.checkpoint, self.window, ForwardBatch.pack(rows, []))
        assert out.dtype == self.case.dtype
        self.check_untouched(before, set(written), {r.window_slot for r, _ in pieces})
        for slot, (running, point) in written.items():
            for buffer in self.checkpoint.values():
                self.worst_state = max(self.worst_state, error(buffer[slot][None], running.states[point][None]))
            running.slots[point] = slot
        for (running, count), piece in zip(pieces, out.split([n for _, n in pieces]), strict=True):
            running.out.append(piece)
            running.computed += count
            running.state_slot = running.slots.get(running.computed // CHUNK * CHUNK, running.state_slot)

    def void(self, running: Running) -> None:
        """NaN wherever the sequence's window holds nothing valid."""
        offset = running.computed % CHUNK
        for name, buffer in self.window.items():
            if offset == 0:
                buffer[running.window_slot] = NAN
            elif name in (valid := self.case.num_valid(offset)):
                buffer[running.window_slot, valid[name] :] = NAN

    def check_untouched(self, before: tuple[Buffers, Buffers], slots: set[int], windows: set[int]) -> None:
        """Nothing but the slots to write and the windows of the batch has changed a bit."""
        for old, new, ours in ((before[0], self.checkpoint, slots), (before[1], self.window, windows)):
            for name in old:
                others = [i for i in range(old[name].shape[0]) if i not in ours]
                was, now = old[name][others], new[name][others]
                assert torch.equal(was.isnan(), now.isnan()), name
                assert torch.equal(was.nan_to_num(), now.nan_to_num()), name


def error(out: torch.Tensor, truth: torch.Tensor) -> float:
    """The largest error of a row in the 2-norm, relative to the row's norm or, if that is larger, to the root mean
    square of all rows' norms (a row whose terms happen to cancel keeps their rounding). NaN counts as infinite."""
    if out.numel() == 0:
        return 0.0
    out, truth = out.double().flatten(1), truth.flatten(1)
    norms = truth.norm(dim=1)
    scale = norms.clamp(min=norms.square().mean().sqrt())
    return float(((out - truth).norm(dim=1) / scale).nan_to_num(nan=torch.inf).max())


def run_all(
    pool: Pool, sequences: Sequence[Running], next_size: Callable[[], int], wanted: Callable[[], bool] = lambda: True
) -> float:
    """Run to the end, each step a random part of the unfinished sequences in random order; the worst row's error."""
    starts = [r.computed for r in sequences]
    while unfinished := [r for r in sequences if r.left]:
        order = torch.randperm(len(unfinished), generator=pool.generator).tolist()
        chosen = [unfinished[i] for i in order[: int(torch.randint(1, len(order) + 1, (1,), generator=pool.generator))]]
        held = [(r, set(r.slots.values())) for r in chosen]
        pool.step([(r, min(next_size(), r.left)) for r in chosen], wanted)
        for running, old in held:  # the cache drops some of the checkpoints that the sequence has passed
            for point, slot in list(running.slots.items()):
                if slot in old and slot != running.state_slot and pool.flip():
                    pool.release(running.slots.pop(point))
    return max(error(torch.cat(r.out), r.truth[start:]) for r, start in zip(sequences, starts, strict=True))
