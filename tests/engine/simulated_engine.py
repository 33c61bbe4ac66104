"""A fake engine around the real scheduler and cache, with a model that notices whatever they do wrong."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

from simulated_model import SimulatedModel, SimulationError, expect, next_token, row_after, row_before

from milepost.cache.memory import GiveBack, Memory
from milepost.cache.prefix_cache import PrefixCache
from milepost.cache.retention import Retention
from milepost.engine.line import Line
from milepost.engine.scheduler import Scheduler, Step
from milepost.errors import RequestError
from milepost.request import Sequence, Status
from milepost.sampling_params import SamplingParams

MAX_STEPS = 20_000
STOP_TOKEN = 0
PIN_NAMES = "abc"

KINDS = {"attention": (16, 0), "large states": (16, 80), "small states": (16, 7), "states alone": (0, 10)}
"""Bytes of a block and of a checkpoint."""


@dataclass
class Arrival:
    """A request with n samples: when it comes, and when, if ever, its client hangs up or its rows go bad. `follows`: it
    goes on from the text of that earlier request, as far as that has got."""

    request_id: str
    step: int
    prompt: list[int]
    params: SamplingParams
    priority: int
    salt: str
    abort_step: int | None
    abort_while_running: bool
    follows: str | None
    boundaries: tuple[int, ...]
    breakpoints: tuple[int, ...]
    bad_row: int | None

    def sequences(self, before: list[int]) -> list[Sequence]:
        return [
            Sequence(
                request_id=self.request_id,
                tokens=[*before, *self.prompt],
                num_prompt_tokens=len(before) + len(self.prompt),
                params=self.params,
                index=index,
                priority=self.priority,
                arrival_time=float(self.step),
                cache_salt=self.salt,
                boundaries=self.boundaries,
                breakpoints=self.breakpoints,
            )
            for index in range(self.params.n)
        ]


@dataclass
class Case:
    """Everything random of one simulation, drawn from its seed. `faults`: memory is refused now and then though it is
    there. `failing_step`: the pass of that step breaks off (0: of none)."""

    seed: int
    faults: bool = False
    rng: random.Random = field(init=False)

    def __post_init__(self) -> None:
        rng = self.rng = random.Random(self.seed)
        self.kind = rng.choice(list(KINDS))
        self.block_bytes, self.checkpoint_bytes = KINDS[self.kind]
        blocks, states = rng.choice([4, 20, 30, 60, 200]), rng.choice([2, 4, 20])
        self.limit_bytes = blocks * self.block_bytes + states * self.checkpoint_bytes
        self.interval = rng.choice([None, None, 0, 0, 128])
        self.num_ends = random.Random(f"ends {self.seed}").choice([0, 1, 3, 10])
        self.cuttable = random.Random(f"cuttable {self.seed}").random() < 0.7
        self.budget = rng.choice([3, 16, 33, 64, 65, 200, 1000])
        self.max_num_seqs = rng.choice([1, 2, 3, 5, 10])
        self.policy = rng.choice(["fcfs", "priority"])
        self.enabled = rng.random() < 0.95
        self.vocab_size = rng.choice([10, 1000, 1000])
        self.stems = [[rng.randrange(self.vocab_size) for _ in range(rng.randrange(330))] for _ in range(2)]
        self.busy = rng.choice([5, 60, 300])
        self.failing_step = random.Random(f"failing step {self.seed}").choice([0, 0, 0, 3, 10, 30])
        self.arrivals: list[Arrival] = []
        for number in range(rng.randrange(2, 16)):
            self.arrivals.append(self._arrival(number))
        self.arrivals.sort(key=lambda arrival: arrival.step)

    def refuses(self) -> bool:
        return self.faults and self.rng.random() < 0.1

    def _arrival(self, number: int) -> Arrival:
        rng = self.rng
        tail = [rng.randrange(self.vocab_size) for _ in range(rng.choice([1, 2, 10, 30, 70, 100]))]
        step = rng.randrange(self.busy)
        follows = rng.choice(self.arrivals) if number and rng.random() < 0.5 else None
        salt = rng.choice(["", "", "", "other"])
        if follows is not None and rng.random() < 0.9:
            step, salt = follows.step + rng.randrange(200), follows.salt
        params = SamplingParams(
            n=rng.choice([1, 1, 1, 3]),
            max_tokens=rng.choice([1, 5, 20, 80, 150]),
            prompt_logprobs=0 if rng.random() < 0.1 else None,
        )
        return Arrival(
            request_id=f"request {number}",
            step=step,
            prompt=rng.choice(self.stems)[: rng.choice([0, 64, 100, 128, 200, 330, 330])] + tail,
            params=params,
            priority=rng.randrange(3),
            salt=salt,
            abort_step=step + rng.randrange(30) if rng.random() < 0.25 else None,
            abort_while_running=rng.random() < 0.5,
            follows=None if follows is None else follows.request_id,
            boundaries=tuple(sorted(rng.randrange(1, 270) for _ in range(rng.choice([0, 0, 1, 3])))),
            breakpoints=tuple(rng.randrange(1, 270) for _ in range(rng.choice([0, 0, 1, 2]))),
            bad_row=rng.randrange(200) if rng.random() < 0.05 else None,
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


class RefusingMemory(Memory):
    """Refuses at times, as the case says."""

    def __init__(self, case: Case, give_back: GiveBack) -> None:
        super().__init__(case.limit_bytes, case.block_bytes, case.checkpoint_bytes, give_back)
        self._case = case

    def take(self, num_blocks: int, num_slots: int) -> tuple[list[int], list[int]] | None:
        return None if (num_blocks or num_slots) and self._case.refuses() else super().take(num_blocks, num_slots)


class SimulatedEngine:
    """Runs one case to its end, and looks at everything on the way. `events` counts what happened."""

    def __init__(
        self,
        case: Case,
        cache_type: type[PrefixCache] = PrefixCache,
        scheduler_type: type[Scheduler] = Scheduler,
        walks: bool = True,
    ) -> None:
        """`walks`: the integrity walk looks too, not the model alone."""
        self.case, self._walks = case, walks
        memory = RefusingMemory(case, lambda blocks, slots: self.model.lose(blocks, slots))
        self.cache = cache_type(
            memory,
            num_seqs=case.max_num_seqs,
            retention=Retention(case.interval),
            enabled=case.enabled,
            num_ends=case.num_ends,
            cuttable=case.cuttable,
        )
        self.scheduler = scheduler_type(
            self.cache, max_num_batched_tokens=case.budget, max_num_seqs=case.max_num_seqs, policy=case.policy
        )
        cache = self.cache
        self.model = SimulatedModel(cache.num_blocks, cache.num_slots, cache.num_windows, case.rng, case.cuttable)
        self.sequences: list[Sequence] = []
        self.events: Counter[str] = Counter()
        self._bad_rows: dict[Sequence, int] = {}
        self._aborted: list[tuple[str, list[int]]] = []
        self._seen: set[Sequence] = set()

    def run(self) -> Counter[str]:
        arrivals = list(self.case.arrivals)
        now = 0
        for _ in range(MAX_STEPS):
            if arrivals and not self.scheduler.has_work:
                now = max(now, arrivals[0].step)
            while arrivals and arrivals[0].step <= now:
                self._arrive(arrivals.pop(0))
            if not arrivals and not self.scheduler.has_work:
                break
            self._operate()
            self._abort(now, while_running=False)
            self._step(now)
            if self._walks and self.case.rng.random() < 0.1:
                self.cache.check(self.scheduler.running)
            now += 1
        self._check_end()
        return self.events

    def _arrive(self, arrival: Arrival) -> None:
        before = [seq for seq in self.sequences if seq.request_id == arrival.follows]
        text = list(before[0].tokens) if before and before[0].num_tokens < 400 else []
        arrival.prompt = arrival.prompt[-70:] if text else arrival.prompt
        for seq in arrival.sequences(text):
            if len(seq.tokens) + 1 > self.scheduler.max_num_tokens:
                self._expect_refusal(seq)
                continue
            self.scheduler.add(seq)
            self.sequences.append(seq)
            if arrival.bad_row is not None:
                self._bad_rows[seq] = arrival.bad_row

    def _expect_refusal(self, seq: Sequence) -> None:
        try:
            self.scheduler.add(seq)
        except RequestError:
            self.events["refused"] += 1
        else:
            raise SimulationError("a prompt larger than the cache was accepted")

    def _operate(self) -> None:
        """What an operator does now and then."""
        rng, case = self.case.rng, self.case
        if rng.random() < 0.03:
            name = rng.choice(PIN_NAMES)
            self.events["pinned"] += self.cache.pins.add(name, rng.choice(case.stems), rng.choice(["", "other"])) > 0
        if rng.random() < 0.03:
            self.events["unpinned"] += self.scheduler.unpin(rng.choice(PIN_NAMES))
        if rng.random() < 0.01:
            self.events["reset"] += self.cache.reset()

    def _abort(self, now: int, while_running: bool) -> None:
        for arrival in self.case.arrivals:
            if arrival.abort_step == now and arrival.abort_while_running == while_running:
                for seq in self.scheduler.running:
                    if seq.request_id == arrival.request_id:
                        self._aborted.append((seq.cache_salt, seq.tokens[: seq.num_computed]))
                ended = self.scheduler.abort(arrival.request_id)
                self.events["aborted during a step" if while_running else "aborted"] += len(ended)

    def _step(self, now: int) -> None:
        step = self.scheduler.schedule(float(now))
        self._check_step(step)
        self._count_hits(step)
        if self.events["steps"] == self.case.failing_step:
            self._fail(step)
            return
        last_rows = self.model.run(step.pieces, self._bad_rows)
        self._abort(now, while_running=True)
        bad = [piece.seq for piece in step.pieces if self._bad_rows.get(piece.seq, piece.end) < piece.end]
        for seq in bad:
            seq.num_sound = self._bad_rows[seq]
        self.scheduler.advance(step)
        for seq in bad:
            self.scheduler.finish(seq, "error")
            self.events["not sound"] += 1
        for seq, row in last_rows.items():
            if seq.status is not Status.FINISHED:
                seq.tokens.append(next_token(row, seq.index, self.case.vocab_size))
                reason = end_of(seq, seq.tokens)
                if reason:
                    self.scheduler.finish(seq, reason)
            if seq.status is Status.FINISHED:
                self.model.forget(seq)

    def _fail(self, step: Step) -> None:
        """The pass broke off somewhere: its requests end, and nothing of it counts as computed."""
        self.model.run(step.pieces[: len(step.pieces) // 2], self._bad_rows)
        for piece in step.pieces:
            self.scheduler.finish(piece.seq, "error")
            self.model.forget(piece.seq)
            self.events["ended with a failed step"] += 1

    def _check_step(self, step: Step) -> None:
        rows = [piece.end - piece.start for piece in step.pieces]
        expect(sum(rows) <= self.case.budget, "the budget is exceeded")
        expect(all(n > 0 for n in rows), "a piece has no rows")
        expect(len({piece.seq for piece in step.pieces}) == len(rows), "a sequence has two pieces")
        expect(self.scheduler.num_running <= self.case.max_num_seqs, "too many sequences run")
        idle = not rows and self.scheduler.has_work and not step.finished
        expect(not idle or self.case.faults, "there is work and none is done")
        for seq in step.preempted:
            expect(seq.status is not Status.WAITING or not seq.block_table, "a preempted sequence holds blocks")
        self.events["preempted"] += len(step.preempted)
        self.events["ended by the cache's size"] += len(step.finished)
        self.events["steps"] += 1

    def _count_hits(self, step: Step) -> None:
        """By what happened before: the oracle's own view of the cache's hits."""
        for piece in step.pieces:
            seq = piece.seq
            if seq in self._seen:
                continue
            self._seen.add(seq)
            prefix = seq.tokens[: piece.start]
            expect(piece.start == seq.num_cached_tokens or seq.num_preemptions > 0, "the report of a hit is wrong")
            self.events["resumed to the token"] += seq.copies is not None
            if prefix and any(
                scope == seq.cache_salt and tokens[: len(prefix)] == prefix for scope, tokens in self._aborted
            ):
                self.events["resumed after an abort"] += 1
            if prefix and seq.miss is not None and seq.miss.reason in ("state thinned", "evicted"):
                self.events["resumed after eviction"] += 1
            if seq.miss is not None:
                self.events[f"miss: {seq.miss.reason}"] += 1

    def _check_end(self) -> None:
        expect(not self.scheduler.has_work, "not everything finished: livelock")
        self.events["pins given up"] += self.cache.stats.pins_given_up
        for name in PIN_NAMES:
            self.scheduler.unpin(name)
        expect(self.cache.usage == 0, "memory is lost")
        if self._walks:
            self.cache.check([])
        parts = [self.scheduler, self.scheduler._followers]
        kept = {n for part in parts for n, v in vars(part).items() if isinstance(v, dict | Line) and len(v)}
        expect(not kept, f"the scheduler still remembers sequences in {kept}")
        for seq in self.sequences:
            self._check_answer(seq)
        stats = self.cache.stats
        expect(stats.hits <= stats.matched <= stats.queries, "more hits than queries")
        self.events += Counter({f"resumed from {kind}": count for kind, count in stats.resumed_from.items()})
        self.events["resumed after preemption"] += stats.preempted_hits
        self.events["blocks evicted"] += stats.evicted_blocks
        self.events["states thinned"] += stats.checkpoints_thinned

    def _check_answer(self, seq: Sequence) -> None:
        tokens, reason = plain(seq, self.case.vocab_size, self.scheduler.max_num_tokens)
        if seq.finish_reason in ("abort", "error"):
            expect(seq.tokens == tokens[: len(seq.tokens)], "an aborted sequence went another way before it ended")
        else:
            expect((seq.tokens, seq.finish_reason) == (tokens, reason), "tokens differ from those of the plain loop")
        reads = self.case.enabled and not seq.params.needs_every_row
        expect(reads or not seq.num_cached_tokens, "a sequence that may not read the cache skipped rows")
