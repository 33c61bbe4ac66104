"""Which rows run in the next step."""

from __future__ import annotations

from dataclasses import dataclass, field

from milepost.cache.prefix_cache import PrefixCache
from milepost.engine.followers import Followers
from milepost.engine.line import Line, Rank
from milepost.errors import ConfigError, RequestError
from milepost.request import Sequence, Status

POLICIES = ("fcfs", "priority")


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows [start, end) of a sequence. `samples`: its last row is that of the last token, and gives the next one."""

    seq: Sequence
    start: int
    end: int
    samples: bool = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "samples", self.end == len(self.seq.tokens))


@dataclass(frozen=True, slots=True)
class Step:
    """What to run, who lost its memory to others, and who has ended ("length") because the whole cache is too small."""

    pieces: tuple[Piece, ...]
    preempted: tuple[Sequence, ...] = ()
    finished: tuple[Sequence, ...] = ()


class Scheduler:
    """Divides the steps among sequences: each one's computed rows catch up with its tokens.

    There are no phases. A sequence with one row to compute (it decodes) and one with many (it reads its prompt, or
    reads all again after a preemption) differ in the number only. The rules:

    **Budget.** A step runs at most `max_num_batched_tokens` rows. Sequences with one row come first, with one each,
    but a quarter of the budget is kept for longer ones while there are any; should single rows alone exceed the rest,
    those that have waited longest go first. What single rows leave is for the longer ones, in order of importance:
    each takes at most three quarters of what is left while somebody stands behind it. So one giant prompt takes most
    of each step, a short one behind it is read at once in the last quarter, the one behind that in a quarter of the
    quarter, and there is no length to configure above which a prompt counts as giant.

    **Memory.** A sequence is let in when all its tokens fit beside what those running need for theirs, with one block
    for each to grow, so that it does not have to go again at once. The first in line that does not fit holds up those
    behind it, who would otherwise starve it. When a running sequence cannot grow, the least important one is preempted
    (perhaps itself): it gives back its memory and computes again later, from whatever is then still cached. The most
    important one is never preempted, and when it is left alone what is pinned yields to it, so every sequence gets
    there in the end; one that no longer fits the whole cache ends with "length". States that are merely worth keeping
    get memory last, when the step has all it needs.

    **Shared prefixes.** While a running sequence computes what a waiting one shares with it, that one waits, to resume
    from there; those behind it may go ahead. Samples of one request are the plainest case (see `followers.py`).

    The caller runs the step, appends a token to each sequence that samples, and calls `advance`.
    """

    def __init__(
        self, cache: PrefixCache, *, max_num_batched_tokens: int, max_num_seqs: int, policy: str = "fcfs"
    ) -> None:
        if max_num_batched_tokens < 1 or max_num_seqs < 1:
            raise ConfigError("max_num_batched_tokens and max_num_seqs must be at least 1", "raise them")
        if policy not in POLICIES:
            raise ConfigError(f"unknown scheduling policy {policy!r}", "use fcfs or priority")
        self.cache = cache
        self._budget = max_num_batched_tokens
        self._max_num_seqs = max_num_seqs
        self._by_priority = policy == "priority"
        self._waiting = Line(self._rank)
        self._running = Line(self._rank)
        self._followers = Followers(cache)
        self._requests: dict[str, list[Sequence]] = {}
        self._ranks: dict[Sequence, Rank] = {}
        self._turns: dict[Sequence, int] = {}
        self._num_added = self._num_steps = self._num_turns = 0
        self._blocked: Sequence | None = None  # the first in line for which memory lacked, until some is given back

    @property
    def has_work(self) -> bool:
        return bool(self._waiting or self._running)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def running(self) -> tuple[Sequence, ...]:
        """The sequences that hold blocks, most important first."""
        return tuple(self._running)

    @property
    def max_num_tokens(self) -> int:
        """Tokens of the longest sequence that the whole cache holds."""
        return self.cache.max_num_tokens

    def add(self, seq: Sequence) -> None:
        """Puts `seq` in line; RequestError if its prompt and one token do not fit the whole cache, or it has none."""
        if seq in self._ranks or seq.status is not Status.WAITING:
            raise ValueError(f"{seq.request_id} is added a second time")
        if not seq.tokens:
            raise RequestError("the prompt is empty", "send at least one token", param="prompt")
        if seq.num_tokens >= self.max_num_tokens:
            raise RequestError(
                f"This model's maximum context length is {self.max_num_tokens} tokens with the memory given to its KV "
                f"cache. However, your prompt has {seq.num_tokens} tokens and needs room for at least one more.",
                "shorten the prompt, or start the server with a larger KV cache",
                code="context_length_exceeded",
                param="prompt",
            )
        importance = (seq.priority, seq.arrival_time) if self._by_priority else (0, 0.0)
        self._ranks[seq] = (*importance, self._num_added)
        self._num_added += 1
        self._requests.setdefault(seq.request_id, []).append(seq)
        self._waiting.add(seq)

    def abort(self, request_id: str) -> list[Sequence]:
        """Ends all unfinished sequences of a request with "abort" and returns them; none if it is not known."""
        ended = list(self._requests.get(request_id, ()))
        for seq in ended:
            self.finish(seq, "abort")
        return ended

    def finish(self, seq: Sequence, reason: str) -> None:
        """Ends `seq` and takes back its memory. A sequence that has ended already keeps its first reason.

        After a step, `advance` comes first: it publishes the rows that this step computed.
        """
        if seq.status is Status.FINISHED:
            return
        if seq.status is Status.RUNNING:
            self._leave(seq)
        else:
            self._waiting.remove(seq)
            self._followers.waits_no_more(seq)
        seq.status = Status.FINISHED
        seq.finish_reason = reason
        del self._ranks[seq]
        self._turns.pop(seq, None)
        siblings = self._requests[seq.request_id]
        siblings.remove(seq)
        if not siblings:
            del self._requests[seq.request_id]

    def unpin(self, name: str) -> bool:
        """The pinned prefix is like any other again; False if there is none of that name."""
        self._blocked = None  # its memory can be had
        return self.cache.pins.remove(name)

    def schedule(self, now: float) -> Step:
        """The next step, at time `now` (seconds). It has pieces whenever there is work that was not just ended."""
        self._num_steps += 1
        longest = self.max_num_tokens
        finished = [seq for seq in self._running if seq.num_tokens > longest]
        for seq in finished:
            self.finish(seq, "length")
        pieces: list[Piece] = []
        preempted: list[Sequence] = []
        while not pieces:
            before = len(preempted), self._blocked
            rows, left = self._divide()
            pieces = self._grow(rows, preempted)
            left = self._admit(pieces, left, now)
            self._hand_out_rest(pieces, left)
            if before == (len(preempted), self._blocked):
                break
        for piece in pieces:
            self.cache.keep_states(piece.seq)
        return Step(tuple(pieces), tuple(preempted), tuple(finished))

    def advance(self, step: Step) -> None:
        """`step` has run: its rows are computed, and full blocks of them and their states become findable."""
        for piece in step.pieces:
            if piece.seq.status is Status.RUNNING:  # and not aborted in the meantime
                piece.seq.num_computed = piece.end
                self.cache.publish(piece.seq)

    def _rank(self, seq: Sequence) -> Rank:
        return self._ranks[seq]

    def _divide(self) -> tuple[dict[Sequence, int], int]:
        """How many rows each running sequence may run in this step (absent: none), and what is left of the budget."""
        singles, longer = [], []
        for seq in self._running:
            unread = len(seq.tokens) - seq.num_computed
            if unread == 1:
                singles.append(seq)
            elif unread > 1:
                longer.append(seq)
        somebody_waits = self._candidate() is not None
        room = self._budget - (self._kept_for_longer() if longer or somebody_waits else 0)
        if len(singles) > room:
            singles = self._next_in_turn(singles, room)
        rows = dict.fromkeys(singles, 1)
        left = self._budget - len(singles)
        for seq in longer:
            if not left:
                break
            alone = seq is longer[-1] and not somebody_waits
            rows[seq] = min(seq.num_tokens - seq.num_computed, _part_of(left, alone))
            left -= rows[seq]
        return rows, left

    def _next_in_turn(self, singles: list[Sequence], room: int) -> list[Sequence]:
        """The `room` sequences, within equal priority, whose last turn is longest ago; they go to the end."""
        chosen = sorted(singles, key=lambda seq: (self._ranks[seq][0], self._turns.get(seq, 0)))[:room]
        for seq in chosen:
            self._num_turns += 1
            self._turns[seq] = self._num_turns
        return chosen

    def _kept_for_longer(self) -> int:
        """Rows of the budget that single rows leave alone: a quarter. A budget of one row goes to either in turn."""
        return max(1, self._budget // 4) if self._budget > 1 else self._num_steps % 2

    def _grow(self, rows: dict[Sequence, int], preempted: list[Sequence]) -> list[Piece]:
        """Pieces of the running sequences, their memory allotted; appends to `preempted` who had to go for that."""
        pieces = []
        for seq in tuple(self._running):
            if seq not in rows or seq.status is not Status.RUNNING:
                continue
            start = seq.num_computed
            end = self.cache.piece_end(seq, start, start + rows[seq])
            # The most important come first, so whoever has to go is not in `pieces` yet.
            while seq.status is Status.RUNNING and not self._gets_memory(seq, end):
                preempted.append(self._preempt(self._running.last))
            if seq.status is Status.RUNNING:
                pieces.append(Piece(seq, start, end))
        return pieces

    def _admit(self, pieces: list[Piece], left: int, now: float) -> int:
        """Appends first pieces of waiting sequences, as far as seats, memory and `left` rows go; returns the rest."""
        if not left or self._candidate() is None:
            return left
        unpromised = self.cache.available_bytes - sum(map(self.cache.bytes_to_come, self._running))
        while left and (seq := self._candidate()):
            available = self.cache.available_bytes
            start = self.cache.admit(seq)
            takes = available - self.cache.available_bytes + self.cache.bytes_to_come(seq)
            if self._running and takes > unpromised:
                self.cache.release(seq)
                self._blocked = seq
                break
            unpromised -= takes
            self._enter(seq, now)
            alone = self._candidate() is None
            end = self.cache.piece_end(seq, start, start + min(seq.num_tokens - start, _part_of(left, alone)))
            if not self._gets_memory(seq, end):  # memory refused what the books allow: another step may have it
                self._put_back(seq)
                break
            pieces.append(Piece(seq, start, end))
            left -= end - start
        return left

    def _gets_memory(self, seq: Sequence, end: int) -> bool:
        """For rows up to `end`. One that runs alone, and could not go on otherwise, takes what is pinned."""
        while not self.cache.grow(seq, end):
            if len(self._running) > 1 or not self.cache.pins.give_up():
                return False
        return True

    def _hand_out_rest(self, pieces: list[Piece], left: int) -> None:
        """Rows that nobody behind has wanted lengthen the pieces, the most important first, where memory is free."""
        for i, piece in enumerate(pieces):
            unread = len(piece.seq.tokens) - piece.end
            if left and unread:
                end = self.cache.piece_end(piece.seq, piece.start, piece.end + min(left, unread))
                if end > piece.end and self.cache.grow(piece.seq, end):
                    pieces[i] = Piece(piece.seq, piece.start, end)
                    left -= end - piece.end

    def _candidate(self) -> Sequence | None:
        """The waiting sequence that is next to be let in, as far as one can tell without asking for memory."""
        if len(self._running) >= self._max_num_seqs:
            return None
        for seq in self._waiting:
            if seq is self._blocked:
                return None
            if not self._followers.waits(seq, self._running):
                return seq
        return None

    def _enter(self, seq: Sequence, now: float) -> None:
        self._waiting.remove(seq)
        self._followers.waits_no_more(seq)
        self._running.add(seq)
        seq.status = Status.RUNNING
        if seq.first_scheduled_time is None:
            seq.first_scheduled_time = now

    def _leave(self, seq: Sequence) -> None:
        self._running.remove(seq)
        self._followers.leads_no_more(seq)
        self.cache.release(seq)
        self._blocked = None

    def _put_back(self, seq: Sequence) -> None:
        self._leave(seq)
        seq.status = Status.WAITING
        self._waiting.add(seq)

    def _preempt(self, seq: Sequence) -> Sequence:
        self._put_back(seq)
        seq.num_preemptions += 1
        return seq


def _part_of(left: int, alone: bool) -> int:
    """Rows that a sequence may take of those left (1 or more): all, or three quarters while others stand behind it."""
    return left if alone else max(1, left * 3 // 4)
