"""A fake engine around the real scheduler and cache, whose model can tell whose rows it reads.

The KV row of a token is a hash of the cache salt and all tokens up to it, so a stale slot, a swapped block, a wrong
position or a crossed salt is a wrong number. The next token is made from the last row *as read from the blocks*.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from zlib import crc32

from milepost.cache.keys import HashFunction, digest
from milepost.cache.prefix_cache import PrefixCache
from milepost.engine.line import Line
from milepost.engine.scheduler import Scheduler, Step
from milepost.errors import RequestError
from milepost.request import Sequence, Status
from milepost.sampling_params import SamplingParams
from milepost.specs import BLOCK_SIZE

MAX_STEPS = 20_000
STOP_TOKEN = 0


class SimulationError(AssertionError):
    """The simulated engine saw something that must never happen."""


def expect(truth: bool, message: str) -> None:
    if not truth:
        raise SimulationError(message)


def row_before(salt: str) -> int:
    return crc32(salt.encode())


def row_after(row: int, token: int) -> int:
    return (row * 6364136223846793005 + token + 1442695040888963407) % 2**64


def next_token(row: int, index: int, vocab_size: int) -> int:
    return ((row >> 33) + 7919 * index) % vocab_size


@dataclass
class Arrival:
    """A request with n samples: when it comes, and when, if ever, its client hangs up."""

    request_id: str
    step: int
    prompt: list[int]
    params: SamplingParams
    priority: int
    salt: str
    abort_step: int | None
    abort_while_running: bool

    def sequences(self) -> list[Sequence]:
        return [
            Sequence(
                request_id=self.request_id,
                tokens=list(self.prompt),
                num_prompt_tokens=len(self.prompt),
                params=self.params,
                index=index,
                priority=self.priority,
                arrival_time=float(self.step),
                cache_salt=self.salt,
            )
            for index in range(self.params.n)
        ]


@dataclass
class Case:
    """Everything random of one simulation, drawn from its seed."""

    seed: int
    rng: random.Random = field(init=False)

    def __post_init__(self) -> None:
        rng = self.rng = random.Random(self.seed)
        self.num_blocks = rng.choice([3, 8, 12, 20, 40])
        self.budget = rng.choice([1, 2, 3, 7, 16, 33, 64, 65, 200])
        self.max_num_seqs = rng.choice([1, 2, 3, 5, 10])
        self.policy = rng.choice(["fcfs", "priority"])
        self.enabled = rng.random() < 0.9
        self.vocab_size = rng.choice([10, 200, 1000])
        self.stems = [[rng.randrange(self.vocab_size) for _ in range(rng.randrange(70))] for _ in range(3)]
        self.busy = rng.choice([5, 60, 300])
        self.arrivals = [self._arrival(i) for i in range(rng.randrange(2, 20))]

    def _arrival(self, number: int) -> Arrival:
        rng = self.rng
        tail = [rng.randrange(self.vocab_size) for _ in range(rng.choice([1, 2, 10, 30]))]
        step = rng.randrange(self.busy)
        params = SamplingParams(
            n=rng.choice([1, 1, 1, 3]),
            max_tokens=rng.choice([1, 5, 20, 60, 150]),
            prompt_logprobs=0 if rng.random() < 0.1 else None,
        )
        return Arrival(
            request_id=f"request {number}",
            step=step,
            prompt=rng.choice(self.stems)[: rng.choice([16, 32, 70])] + tail,
            params=params,
            priority=rng.randrange(3),
            salt=rng.choice(["", "", "other"]),
            abort_step=step + rng.randrange(30) if rng.random() < 0.25 else None,
            abort_while_running=rng.random() < 0.5,
        )


def plain(seq: Sequence, vocab_size: int, max_num_tokens: int) -> tuple[list[int], str]:
    """Tokens and finish reason of a sequence that is alone in the world and keeps its rows in a list."""
    row, tokens = row_before(seq.cache_salt), list(seq.tokens[: seq.num_prompt_tokens])
    for token in tokens:
        row = row_after(row, token)
    while True:
        tokens.append(next_token(row, seq.index, vocab_size))
        reason = end_of(seq, tokens)
        if reason or len(tokens) > max_num_tokens:
            return tokens, reason or "length"
        row = row_after(row, tokens[-1])


def end_of(seq: Sequence, tokens: list[int]) -> str | None:
    if tokens[-1] == STOP_TOKEN:
        return "stop"
    return "length" if len(tokens) - seq.num_prompt_tokens == seq.params.max_tokens else None


class SimulatedEngine:
    """Runs one case to its end, and looks at everything on the way. `events` counts what happened."""

    def __init__(
        self,
        case: Case,
        cache_type: type[PrefixCache] = PrefixCache,
        scheduler_type: type[Scheduler] = Scheduler,
        hash_function: HashFunction = digest,
    ) -> None:
        self.case = case
        self.cache = cache_type(case.num_blocks, b"model", enabled=case.enabled, hash_function=hash_function)
        self.scheduler = scheduler_type(
            self.cache, max_num_batched_tokens=case.budget, max_num_seqs=case.max_num_seqs, policy=case.policy
        )
        self.memory = [[0] * BLOCK_SIZE for _ in range(case.num_blocks)]
        self.sequences: list[Sequence] = []
        self.events: Counter[str] = Counter()
        self._rows: dict[Sequence, list[int]] = {}

    def run(self) -> Counter[str]:
        arrivals = list(self.case.arrivals)
        for now in range(MAX_STEPS):
            arrivals = [arrival for arrival in arrivals if not self._arrives(arrival, now)]
            if not arrivals and not self.scheduler.has_work:
                break
            self._abort(now, while_running=False)
            self._step(now)
            self.cache.check(self.scheduler.running)
        self._check_end()
        return self.events

    def _arrives(self, arrival: Arrival, now: int) -> bool:
        if arrival.step > now:
            return False
        for seq in arrival.sequences():
            if len(seq.tokens) + 1 > self.scheduler.max_num_tokens:
                self._expect_refusal(seq)
            else:
                self.scheduler.add(seq)
                self.sequences.append(seq)
        return True

    def _expect_refusal(self, seq: Sequence) -> None:
        try:
            self.scheduler.add(seq)
        except RequestError:
            self.events["refused"] += 1
        else:
            raise SimulationError("a prompt larger than the cache was accepted")

    def _abort(self, now: int, while_running: bool) -> None:
        for arrival in self.case.arrivals:
            if arrival.abort_step == now and arrival.abort_while_running == while_running:
                ended = self.scheduler.abort(arrival.request_id)
                self.events["aborted during a step" if while_running else "aborted"] += len(ended)

    def _step(self, now: int) -> None:
        step = self.scheduler.schedule(float(now))
        self._check_step(step)
        last_rows = self._run(step)
        self._abort(now, while_running=True)
        self.scheduler.advance(step)
        for seq, row in last_rows.items():
            if seq.status is not Status.FINISHED:
                seq.tokens.append(next_token(row, seq.index, self.case.vocab_size))
                reason = end_of(seq, seq.tokens)
                if reason:
                    self.scheduler.finish(seq, reason)

    def _check_step(self, step: Step) -> None:
        rows = [piece.end - piece.start for piece in step.pieces]
        expect(sum(rows) <= self.case.budget, "the budget is exceeded")
        expect(all(n > 0 for n in rows), "a piece has no rows")
        expect(len({piece.seq for piece in step.pieces}) == len(rows), "a sequence has two pieces")
        expect(self.scheduler.num_running <= self.case.max_num_seqs, "too many sequences run")
        expect(bool(rows) or not self.scheduler.has_work or bool(step.finished), "there is work and none is done")
        for seq in step.preempted:
            expect(seq.status is Status.WAITING and not seq.block_table, "a preempted sequence holds blocks")
        self.events["preempted"] += len(step.preempted)
        self.events["ended by the cache's size"] += len(step.finished)
        self.events["steps"] += 1

    def _run(self, step: Step) -> dict[Sequence, int]:
        """Reads and writes the rows of all pieces, in any order; the last row of each sequence that samples."""
        pieces = list(step.pieces)
        self.case.rng.shuffle(pieces)
        sampled = {}
        for piece in pieces:
            seq = piece.seq
            expect(piece.start == seq.num_computed, "a piece does not start where the computed rows end")
            expect(piece.end <= len(seq.block_table) * BLOCK_SIZE, "a piece has rows without a block")
            row = self._read(seq, piece.start)
            for place in range(piece.start, piece.end):
                row = row_after(row, seq.tokens[place])
                self.memory[seq.block_table[place // BLOCK_SIZE]][place % BLOCK_SIZE] = row
            if piece.samples:
                sampled[seq] = row
        return sampled

    def _read(self, seq: Sequence, num_rows: int) -> int:
        """Compares every earlier row in the sequence's blocks with what its own tokens say; returns the last."""
        rows = self._rows.setdefault(seq, [])
        while len(rows) < num_rows:
            rows.append(row_after(rows[-1] if rows else row_before(seq.cache_salt), seq.tokens[len(rows)]))
        row = row_before(seq.cache_salt)
        for place in range(num_rows):
            row = self.memory[seq.block_table[place // BLOCK_SIZE]][place % BLOCK_SIZE]
            expect(row == rows[place], f"seed {self.case.seed}: {seq.request_id} reads a wrong row at {place}")
        return row

    def _check_end(self) -> None:
        expect(not self.scheduler.has_work, "not everything finished: livelock")
        expect(self.cache.num_free_blocks == self.cache.num_blocks, "blocks are lost")
        self.cache.check([])
        kept = {name for name, value in vars(self.scheduler).items() if isinstance(value, dict | Line) and len(value)}
        expect(not kept, f"the scheduler still remembers sequences in {kept}")
        for seq in self.sequences:
            tokens, reason = plain(seq, self.case.vocab_size, self.scheduler.max_num_tokens)
            if seq.finish_reason == "abort":
                expect(seq.tokens == tokens[: len(seq.tokens)], "an aborted sequence went another way before it ended")
            else:
                expect(
                    (seq.tokens, seq.finish_reason) == (tokens, reason), "tokens differ from those of the plain loop"
                )
            reads = self.case.enabled and not seq.params.needs_every_row
            expect(reads or not seq.num_cached_tokens, "a sequence that may not read the cache skipped rows")
        stats = self.cache.stats
        expect(stats.hits <= stats.queries, "more hits than queries")
        self.events["resumed from another's blocks"] += stats.hits
        self.events["resumed after preemption"] += stats.preempted_hits
        self.events["evicted"] += stats.evicted_blocks
