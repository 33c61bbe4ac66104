"""The scenarios must be able to fail: each of these faults, planted in cache, runner or engine, turns one of them red.

Many more are planted over the model of hashes, in tests/engine/test_scheduler_faults.py.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

import pytest
import test_scenario_hits as hits
import test_scenario_right_answers as right_answers
from client import Failed
from plain_answers import PlainLoop
from stage import Place, Serve

from milepost.cache.keys import pack
from milepost.cache.memory import IntegrityError
from milepost.cache.prefix_cache import PrefixCache
from milepost.cache.tree import ancestors
from milepost.engine import runner
from milepost.engine.engine import Engine
from milepost.engine.scheduler import Piece, Step
from milepost.ops import Rows
from milepost.outputs import RequestOutput
from milepost.request import Sequence
from milepost.specs import BLOCK_SIZE

Scenario = Callable[[Serve], None]
Plant = Callable[[pytest.MonkeyPatch], None]


def wrong_slot(patch: pytest.MonkeyPatch) -> None:
    publish = PrefixCache.publish

    def planted(self: PrefixCache, seq: Sequence) -> None:
        publish(self, seq)
        seq.state_slot -= seq.state_slot > 1

    patch.setattr(PrefixCache, "publish", planted)


def checkpoint_skipped(patch: pytest.MonkeyPatch) -> None:
    """Of the states of a step only the last is written."""
    rows = runner._rows

    def planted(piece: Piece) -> Rows:
        seq = piece.seq
        slots = [-1] * len(seq.grid_slots[:-1]) + seq.grid_slots[-1:]
        right = rows(piece)
        return Rows(right.start, right.end, seq.block_table, seq.state_slot, seq.window_slot, slots)

    patch.setattr(runner, "_rows", planted)


def key_without_scope(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PrefixCache, "scope", lambda self, seq: "")


def gap_row_written_into_a_shared_block(patch: pytest.MonkeyPatch) -> None:
    admit = PrefixCache.admit

    def planted(self: PrefixCache, seq: Sequence) -> int:
        resumed = admit(self, seq)
        node, matched = self._tree.match(self.scope(seq), seq.packed, seq.num_tokens - 1)
        if node is not None:
            path = [*reversed(list(ancestors(node))), node]
            seq.block_table[:] = [block for part in path for block in part.blocks][: matched // BLOCK_SIZE]
        return resumed

    patch.setattr(PrefixCache, "admit", planted)


def published_before_computed(patch: pytest.MonkeyPatch) -> None:
    grow = PrefixCache.grow

    def planted(self: PrefixCache, seq: Sequence, num_tokens: int) -> bool:
        grown, hold = grow(self, seq, num_tokens), self._holdings[seq].hold
        end = num_tokens // BLOCK_SIZE * BLOCK_SIZE
        pack(seq.packed, seq.tokens)
        if grown and hold is not None and end > hold.depth:
            self._store.publish(hold, seq.packed, end, seq.block_table)
        return grown

    patch.setattr(PrefixCache, "grow", planted)


def window_not_copied_on_a_fork(patch: pytest.MonkeyPatch) -> None:
    """A sequence goes on from another's last row between grid points, with a window of its own that nobody filled."""
    patch.setattr(runner.Runner, "_copy", lambda self, pieces: None)


def rejected_row_published(patch: pytest.MonkeyPatch) -> None:
    """The rows of a step that failed count as computed."""
    fail_all = Engine._fail_all

    def planted(self: Engine, step: Step, error: Exception) -> list[RequestOutput]:
        self.scheduler.advance(step)
        return fail_all(self, step, error)

    patch.setattr(Engine, "_fail_all", planted)


FAULTS: list[tuple[Plant, Scenario]] = [
    (wrong_slot, right_answers.test_c7_answers_read_as_prompts),
    (checkpoint_skipped, hits.test_a5_less_and_less_in_common),
    (key_without_scope, right_answers.test_c9_scopes_never_share),
    (gap_row_written_into_a_shared_block, hits.test_a2_a_prefix_and_fresh_questions),
    (published_before_computed, right_answers.test_c6_a_step_that_fails),
    (window_not_copied_on_a_fork, right_answers.test_c8_eight_samples_each_continued),
    (rejected_row_published, right_answers.test_c6_a_step_that_fails),
]
SEEN = (AssertionError, IntegrityError, Failed, LookupError, ValueError)
"""A wrong answer or report, books that do not balance, rows that are not finite, lists that do not fit each other."""


@pytest.mark.parametrize(("plant", "scenario"), FAULTS, ids=[plant.__name__ for plant, _ in FAULTS])
def test_a_fault_turns_a_scenario_red(
    plant: Plant, scenario: Scenario, serve_alone: Callable[[Scenario], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    serve_alone(scenario)
    plant(monkeypatch)
    with pytest.raises(SEEN):
        serve_alone(scenario)


@pytest.fixture
def serve_alone(plain_loops: Callable[[bool], PlainLoop]) -> Callable[[Scenario], None]:
    """Plays a scenario once, small, over the engine."""

    def play(scenario: Scenario) -> None:
        with ExitStack() as stack:
            scenario(Serve(Place("gated_delta", "engine", True), plain_loops(False), stack))

    return play
