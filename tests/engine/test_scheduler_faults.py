"""The simulation notices faults that are planted in cache and scheduler: each is a way in which caches go wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from simulated_engine import Case, SimulatedEngine, SimulationError

from milepost.cache import tree
from milepost.cache.keys import pack
from milepost.cache.memory import IntegrityError, Memory
from milepost.cache.prefix_cache import PrefixCache
from milepost.cache.retention import floor_to_grid
from milepost.cache.search import Found
from milepost.cache.states import Holding, States
from milepost.cache.tree import Node, Tree, ancestors
from milepost.engine.scheduler import Piece, Scheduler, Step
from milepost.request import Sequence
from milepost.specs import BLOCK_SIZE

NUM_CASES = 400


def is_noticed(walks: bool = True, **planted: object) -> bool:
    for seed in range(NUM_CASES):
        try:
            SimulatedEngine(Case(seed), walks=walks, **planted).run()  # type: ignore[arg-type]
        except (SimulationError, IntegrityError, LookupError, ValueError):  # the latter where books are torn
            return True
    return False


class PublishesBeforeComputing(PrefixCache):
    def grow(self, seq: Sequence, num_tokens: int) -> bool:
        grown = super().grow(seq, num_tokens)
        holding = self._holdings[seq]
        end = num_tokens // BLOCK_SIZE * BLOCK_SIZE
        pack(seq.packed, seq.tokens)
        if grown and holding.hold is not None and end > holding.hold.depth:
            self._store.publish(holding.hold, seq.packed, end, seq.block_table)
        return grown


class PublishesUnfinishedBlock(PrefixCache):
    def publish(self, seq: Sequence) -> None:
        computed = seq.num_computed
        seq.num_computed = min(-(-computed // BLOCK_SIZE), len(seq.tokens) // BLOCK_SIZE) * BLOCK_SIZE
        super().publish(seq)
        seq.num_computed = computed


class PublishesUnsoundRows(PrefixCache):
    def publish(self, seq: Sequence) -> None:
        seq.num_sound = None
        super().publish(seq)


class KeyWithoutScope(PrefixCache):
    def scope(self, seq: Sequence) -> str:
        return ""


class LosesBlock(PrefixCache):
    def release(self, seq: Sequence) -> None:
        seq.block_table[-1:] = []
        super().release(seq)


class ReleasesTwice(PrefixCache):
    def release(self, seq: Sequence) -> None:
        own = seq.block_table[-1:] if self.memory.block_bytes else []
        super().release(seq)
        self.memory.free(own, [])


class WritesGapIntoSharedBlocks(PrefixCache):
    def admit(self, seq: Sequence) -> int:
        resumed = super().admit(seq)
        node, matched = self._tree.match(self.scope(seq), seq.packed, seq.num_tokens - 1)
        if node is not None and self.memory.block_bytes and self.reads(seq):
            path = [*reversed(list(ancestors(node))), node]
            seq.block_table[:] = [block for part in path for block in part.blocks][: matched // BLOCK_SIZE]
        return resumed


class ResumesWithNothingToCompute(PrefixCache):
    def admit(self, seq: Sequence) -> int:
        seq.tokens.append(1)
        resumed = super().admit(seq)
        seq.tokens.pop()
        return resumed


class ReadsForThoseWhoNeedEveryRow(PrefixCache):
    def reads(self, seq: Sequence) -> bool:
        return True


class SwapsBlocks(PrefixCache):
    def grow(self, seq: Sequence, num_tokens: int) -> bool:
        grown = super().grow(seq, num_tokens)
        if seq.num_computed > BLOCK_SIZE:
            seq.block_table[:2] = reversed(seq.block_table[:2])
        return grown


def at_states(cache: PrefixCache, seq: Sequence) -> Found:
    pack(seq.packed, seq.tokens)
    limit = seq.num_tokens - 1
    return cache._search.at_states(cache.scope(seq), seq.packed, limit) if cache.reads(seq) else Found()


class SkipsACheckpoint(PrefixCache):
    """Resumes at the last grid point of the KV match, from whatever state lies below."""

    def _find(self, seq: Sequence) -> Found:
        found = at_states(self, seq)
        return replace(found, resumed=floor_to_grid(found.matched)) if found.checkpoint else found


class ForksWithoutTheWindow(PrefixCache):
    """Goes on from another's last row between two grid points, with a window that nobody has filled."""

    def _find(self, seq: Sequence) -> Found:
        found = at_states(self, seq)
        return replace(found, resumed=found.matched) if found.checkpoint else found


class ResumesWithoutTheCopies(PrefixCache):
    def admit(self, seq: Sequence) -> int:
        resumed = super().admit(seq)
        seq.copies = None
        return resumed


class KeepsTheEndOfAStepThatNeverEnded(PrefixCache):
    def grow(self, seq: Sequence, num_tokens: int) -> bool:
        grown = super().grow(seq, num_tokens)
        self._holdings[seq].stepping = False
        return grown


class CutsWhatCannotBeCut(PrefixCache):
    def admit(self, seq: Sequence) -> int:
        self._store.ends.cuttable = True
        return super().admit(seq)


class TakesAWrongSlot(PrefixCache):
    def publish(self, seq: Sequence) -> None:
        super().publish(seq)
        if seq.state_slot > 1:
            seq.state_slot -= 1


class ForgetsToMoveTheWindow(PrefixCache):
    def publish(self, seq: Sequence) -> None:
        super().publish(seq)
        if self._states is not None and self._states.free_windows:
            self._states.free_windows.append(seq.window_slot)
            seq.window_slot = self._states.free_windows.pop(0)


class KeepsComputedRowsOfPreempted(Scheduler):
    def _preempt(self, seq: Sequence) -> Sequence:
        computed = seq.num_computed
        super()._preempt(seq)
        seq.num_computed = computed
        seq.block_table = [0] * (computed // BLOCK_SIZE)
        return seq


class PublishesRejectedRows(Scheduler):
    """The rows of a step that failed count as computed."""

    pieces: tuple[Piece, ...] = ()

    def schedule(self, now: float) -> Step:
        self.pieces = (step := super().schedule(now)).pieces
        return step

    def finish(self, seq: Sequence, reason: str) -> None:
        for piece in self.pieces:
            if piece.seq is seq and reason == "error" and seq.num_sound is None:
                seq.num_computed = piece.end
                self.cache.publish(seq)
        super().finish(seq, reason)


class NeverPreempts(Scheduler):
    def _preempt(self, seq: Sequence) -> Sequence:
        raise SimulationError("a sequence that cannot grow is stuck")


SEEN_BY_THE_MODEL = [
    PublishesBeforeComputing,
    PublishesUnfinishedBlock,
    PublishesUnsoundRows,
    KeyWithoutScope,
    ResumesWithNothingToCompute,
    ReadsForThoseWhoNeedEveryRow,
    SwapsBlocks,
    SkipsACheckpoint,
    ForksWithoutTheWindow,
    ResumesWithoutTheCopies,
    KeepsTheEndOfAStepThatNeverEnded,
    CutsWhatCannotBeCut,
    TakesAWrongSlot,
    ForgetsToMoveTheWindow,
]


@pytest.mark.parametrize("fault", SEEN_BY_THE_MODEL)
def test_the_model_notices_a_fault_in_the_cache(fault: type[PrefixCache]) -> None:
    assert is_noticed(walks=False, cache_type=fault)


@pytest.mark.parametrize("fault", [LosesBlock, ReleasesTwice, WritesGapIntoSharedBlocks])
def test_the_walk_notices_a_fault_in_the_books(fault: type[PrefixCache]) -> None:
    assert is_noticed(cache_type=fault)


@pytest.mark.parametrize("fault", [KeepsComputedRowsOfPreempted, NeverPreempts, PublishesRejectedRows])
def test_the_simulation_notices_a_fault_in_the_scheduler(fault: type[Scheduler]) -> None:
    assert is_noticed(walks=False, cache_type=PrefixCache, scheduler_type=fault)


def _pins_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tree, "pin", lambda self, checkpoint: None)
    monkeypatch.setattr(Tree, "unpin", lambda self, checkpoint: None)


def _holds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def count_held(self: Tree, node: Node) -> None:
        if node.length and not node.children:
            self._listener.offer(node)

    monkeypatch.setattr(Tree, "_count_held", count_held)


def _compares_no_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "common_blocks", lambda a, b, start, limit: limit // BLOCK_SIZE * BLOCK_SIZE)


def _gives_back_what_is_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    def cool(self: Memory, num_bytes: int) -> None:
        assert self.give_back is not None
        self.give_back(list(self.blocks.used())[:1], list(self.slots.used())[:1])

    monkeypatch.setattr(Memory, "_cool", cool)


def _drops_the_state_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The old state is given back before the step that reads it has run."""
    plan = States.plan_last

    def plan_last(self: States, seq: Sequence, holding: Holding, end: int, num_blocks: int) -> list[int] | None:
        blocks = plan(self, seq, holding, end, num_blocks)
        if (
            holding.planned
            and seq.state_slot
            and holding.state is None
            and self._store.memory.slots.in_use(seq.state_slot)
        ):
            self._store.memory.free([], [seq.state_slot])
        return blocks

    monkeypatch.setattr(States, "plan_last", plan_last)


def _splits_beside_the_states(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpoints stay with the upper part of a node that is split, wherever they are."""
    split = Tree.split

    def split_wrongly(self: Tree, node: Node, depth: int) -> Node:
        upper = split(self, node, depth)
        upper.checkpoints += node.checkpoints
        for checkpoint in node.checkpoints:
            checkpoint.node = upper
        node.checkpoints = []
        return upper

    monkeypatch.setattr(Tree, "split", split_wrongly)


PATCHES = [
    _pins_nothing,
    _holds_nothing,
    _compares_no_tokens,
    _gives_back_what_is_in_use,
    _drops_the_state_read,
    _splits_beside_the_states,
]


@pytest.mark.parametrize("plant", PATCHES)
def test_the_simulation_notices_a_fault_in_a_part(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    assert is_noticed(walks=False)
