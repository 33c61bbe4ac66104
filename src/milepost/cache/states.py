"""Which recurrent states a running sequence reads and writes: windows, and checkpoint slots at grid points."""

from __future__ import annotations

from dataclasses import dataclass, field

from milepost.cache.ends import End
from milepost.cache.keys import TOKEN_BYTES, pack
from milepost.cache.memory import IntegrityError
from milepost.cache.policies.policy import StatesAhead
from milepost.cache.retention import Kind, Retention, floor_to_grid, stronger
from milepost.cache.store import Store
from milepost.cache.tree import Checkpoint, Hold, Node
from milepost.request import Sequence
from milepost.specs import BLOCK_SIZE, CHUNK


@dataclass(slots=True, eq=False)
class Holding:
    """What the cache remembers of a sequence that it has admitted.

        rows      0 ..... 64 ..... 128 ... num_computed ... 192 ............ 256 ... end of the step
        state                       ^ read: `seq.state_slot` |               |
        planned                                              ^ a slot, or no ^ always a slot

    hold      its claim on the shared prefix; tokens from `hold.depth` on are its own. None: it shares nothing
    state     the shared checkpoint in `seq.state_slot`, pinned; None: slot 0, or its own
    planned   slots for grid points that the next step reaches, its own until they are published
    junction  grid point to keep because known KV ended there, deeper than it could resume; 0: none
    query     (tokens asked for, matched, resumed), until its first rows have run
    found     the node in which its match ended
    end       the end of a text from which it copies what its first rows go on from, until these have run
    loan      a claim on the block that it copies, if that is the tree's, as long
    ran       rows computed when its last step began
    stepping  a step is planned: what its window holds cannot be told until that has run
    """

    hold: Hold | None
    state: Checkpoint | None = None
    planned: dict[int, int] = field(default_factory=dict)
    junction: int = 0
    query: tuple[int, int, int] | None = None
    found: Node | None = None
    end: End | None = None
    loan: Hold | None = None
    ran: int = 0
    stepping: bool = False


def grid_points(start: int, end: int) -> range:
    """The grid points in (start, end]."""
    return range(floor_to_grid(start) + CHUNK, end + 1, CHUNK)


class States:
    """Plans, publishes and gives back the states of running sequences. A model without states has none of it.

    At a grid point the next state is written beside the one that is read: a sequence needs two slots. The slots of a
    step are planned twice. First `plan_last`, which must succeed: the state to go on from. When all sequences of the
    step have theirs, `plan_kept`: what is worth keeping besides, and costs nobody what is worth more.
    """

    def __init__(self, store: Store, retention: Retention) -> None:
        self.num_windows, self.free_windows = store.ends.num_windows, store.ends.free_windows
        self._store, self._retention = store, retention

    def admit(self, seq: Sequence) -> None:
        """A window and the empty prefix's state; IntegrityError if there is no window left."""
        if not self.free_windows:
            raise IntegrityError(f"{seq.request_id} finds no window among {self.num_windows}")
        seq.window_slot, seq.state_slot = self.free_windows.pop(), 0

    def resume(self, seq: Sequence, holding: Holding, checkpoint: Checkpoint) -> None:
        """`seq` starts from `checkpoint`."""
        self._store.tree.pin(checkpoint)
        checkpoint.last_use = self._store.now()
        holding.state, seq.state_slot = checkpoint, checkpoint.slot

    def to_come(self, seq: Sequence, holding: Holding) -> int:
        """Slots that `seq` lacks to run all its tokens and one block more."""
        ahead = len(grid_points(seq.num_computed, seq.num_tokens + BLOCK_SIZE))
        reads = seq.state_slot > 0
        return max(0, min(2, reads + ahead) - reads - len(holding.planned))

    def plan_last(self, seq: Sequence, holding: Holding, end: int, num_blocks: int) -> list[int] | None:
        """A slot for the last grid point that rows up to `end` reach, if they reach one, and `num_blocks` blocks, which
        it returns; None, and nothing changed, if the memory lacks."""
        points, planned = grid_points(seq.num_computed, end), holding.planned
        if not (num_blocks or points or planned):
            return []
        last = points[-1] if points else 0
        unneeded = [p for p in planned if p != last and not (p in points and self._kind(seq, holding, p))]
        lacks = bool(points) and last not in planned
        taken = self._store.take(num_blocks, int(lacks and not unneeded))
        if taken is None:
            return None
        if lacks:
            planned[last] = taken[1][0] if taken[1] else planned.pop(unneeded.pop())
        self._store.memory.free([], [planned.pop(point) for point in unneeded])
        self._name(seq, holding, points)
        return taken[0]

    def plan_kept(self, seq: Sequence, holding: Holding) -> None:
        """Slots for the other grid points of the step, as far as the policy finds them worth it."""
        planned, hold = holding.planned, holding.hold
        if not planned or hold is None:
            return
        points = grid_points(seq.num_computed, max(planned))
        kinds = self._retention.kinds(seq, holding.junction, points)
        for point in planned:
            kinds.pop(point, None)
        if not kinds:
            return
        base = self._store.tree.deepest(hold.node, hold.depth)
        ahead = StatesAhead(seq, kinds, tuple(sorted(planned)), base.depth if base else 0, hold.node, hold.depth)
        self._store.policy.admission.plan(ahead, lambda point, below: self._plan_one(holding, point, below))
        self._name(seq, holding, points)

    def publish(self, seq: Sequence, holding: Holding) -> None:
        """The rows below `seq.num_computed` have run: what they wrote is shared, and the last of it is the state to go
        on from."""
        ran, holding.ran, holding.stepping = holding.ran, seq.num_computed, False
        written = [point for point in sorted(holding.planned) if point <= seq.num_computed]
        if not written:
            return
        self._leave_prompt_end(seq, holding, ran)
        kinds = self._retention.kinds(seq, holding.junction, range(written[0], written[-1] + 1, CHUNK))
        for point in written:
            slot = holding.planned.pop(point)
            checkpoint = self._share(seq, holding, point, slot, kinds.get(point))
            if point == written[-1]:
                self._go_on(seq, holding, slot, checkpoint)
            elif checkpoint is None:
                self._store.memory.free([], [slot])
        seq.grid_slots = []

    def release(self, seq: Sequence, holding: Holding) -> None:
        """Takes all back; the state at the last grid point stays, as an end, if it can be shared, and the rows that
        follow it: then their last block, too, is no more in the sequence's table."""
        self._store.memory.free([], list(holding.planned.values()))
        holding.planned.clear()
        seq.grid_slots = []
        checkpoint = holding.state
        if seq.state_slot and holding.state is None:
            checkpoint = self._share(seq, holding, floor_to_grid(seq.num_computed), seq.state_slot, "end")
            if checkpoint is None:
                self._store.memory.free([], [seq.state_slot])
        elif holding.state is not None:
            if holding.query is None:  # and not turned back before it ran
                holding.state.kind = stronger(holding.state.kind, "end")
            holding.state.last_use = self._store.now()
            self._store.tree.unpin(holding.state)
        holding.state, seq.state_slot = None, 0
        if not self._leave_end(seq, holding, checkpoint):
            self.free_windows.append(seq.window_slot)

    def own_slots(self, seq: Sequence, holding: Holding) -> list[int]:
        """Those that belong to `seq` alone."""
        private = [seq.state_slot] if seq.state_slot and holding.state is None else []
        return private + list(holding.planned.values())

    def _leave_end(self, seq: Sequence, holding: Holding, checkpoint: Checkpoint | None) -> bool:
        """Keeps the rows of `seq` after `checkpoint`, its last; False: its window is free."""
        start, end = floor_to_grid(seq.num_computed), seq.num_computed
        unknown = holding.stepping or holding.end is not None or seq.num_sound is not None
        if end == start or unknown or holding.hold is None or (start and checkpoint is None):
            return False
        block = None
        if end % BLOCK_SIZE and self._store.memory.block_bytes:
            block = seq.block_table[end // BLOCK_SIZE]
        if not self._keep(seq, checkpoint, start, end, block):
            return False
        if block is not None:
            seq.block_table.remove(block)
        return True

    def _leave_prompt_end(self, seq: Sequence, holding: Holding, ran: int) -> None:
        """The answer of `seq` has filled the chunk in which its prompt ends, a row at a time: the window has all of it,
        and is void for `seq`. So it can stay for those who bring the same prompt, and `seq` goes on with another."""
        start, end = seq.num_computed - CHUNK, seq.num_prompt_tokens
        ends, hold = self._store.ends, holding.hold
        if seq.num_computed % CHUNK or not start < end <= ran or not ends.cuttable or not ends.max_num:
            return
        if hold is None or seq.num_sound is not None or not self.free_windows:
            return
        checkpoint = self._store.tree.checkpoint_at(hold.node, start) if start else None
        if (checkpoint is not None or not start) and self._keep(seq, checkpoint, start, end, None):
            seq.window_slot = self.free_windows.pop()

    def _keep(self, seq: Sequence, checkpoint: Checkpoint | None, start: int, end: int, block: int | None) -> bool:
        pack(seq.packed, seq.tokens)
        tokens = bytes(seq.packed[start * TOKEN_BYTES : end * TOKEN_BYTES])
        place = seq.cache_salt if checkpoint is None else checkpoint
        return self._store.ends.keep(End(place, start, tokens, seq.window_slot, block))

    def _kind(self, seq: Sequence, holding: Holding, point: int) -> Kind | None:
        return self._retention.kind(seq, holding.junction, point)

    def _name(self, seq: Sequence, holding: Holding, points: range) -> None:
        seq.grid_slots = [holding.planned.get(point, -1) for point in points]

    def _plan_one(self, holding: Holding, point: int, below: float) -> bool:
        taken = self._store.take(0, 1, below)
        if taken is None:
            return False
        holding.planned[point] = taken[1][0]
        return True

    def _share(self, seq: Sequence, holding: Holding, point: int, slot: int, kind: Kind | None) -> Checkpoint | None:
        """The tree's checkpoint at `point`: the one it has (`slot` is free then), or, if there is a reason to keep it,
        a new one in `slot`; None: `slot` stays the sequence's own."""
        hold = holding.hold
        if hold is None or point > hold.depth:
            return None
        known = self._store.tree.checkpoint_at(hold.node, point)
        if known is None:
            if kind is None:
                return None
            known = self._store.add_checkpoint(hold, point, slot, kind)
            known.in_answer = point > seq.num_prompt_tokens
            return known
        self._store.memory.free([], [slot])
        if kind is not None:
            known.kind = stronger(known.kind, kind)
        return known

    def _go_on(self, seq: Sequence, holding: Holding, slot: int, checkpoint: Checkpoint | None) -> None:
        """The state in `slot`, or the tree's equal one, takes the place of the one that was read."""
        if checkpoint is not None:
            self._store.tree.pin(checkpoint)
        if holding.state is not None:
            self._store.tree.unpin(holding.state)
        elif seq.state_slot:
            self._store.memory.free([], [seq.state_slot])
        holding.state = checkpoint
        seq.state_slot = slot if checkpoint is None else checkpoint.slot
