"""Recurrent states: who holds which slot, through admission, growth, steps and release."""

from __future__ import annotations

import random

import pytest

from milepost.cache.block_pool import IntegrityError
from milepost.cache.state_slots import StateSlots, num_slots
from milepost.request import Sequence
from milepost.sampling_params import SamplingParams


def sequence(name: str = "a") -> Sequence:
    return Sequence(name, [0] * 1000, 1000, SamplingParams())


def test_a_step_over_grid_points_keeps_the_last_state_and_gives_back_the_one_before() -> None:
    slots, seq = StateSlots(2), sequence()
    slots.admit(seq)
    assert seq.state_slot == 0
    slots.grow(seq, 63)
    assert seq.grid_slots == []
    slots.grow(seq, 200)
    assert seq.grid_slots[:2] == [-1, -1]
    assert seq.grid_slots[2] > 0
    slots.grow(seq, 260)  # the step was made longer before it ran: one point more, the same slot
    written = seq.grid_slots[3]
    seq.num_computed = 260
    slots.advance(seq)
    assert (seq.state_slot, seq.grid_slots) == (written, [])
    slots.grow(seq, 320)
    assert len(seq.grid_slots) == 1
    assert seq.grid_slots[0] not in (0, written)
    seq.num_computed = 320
    slots.advance(seq)
    slots.check([seq])
    slots.release(seq)
    slots.check([])


def test_a_release_before_the_step_ran_gives_back_both_states() -> None:
    slots, seq = StateSlots(1), sequence()
    for _ in range(5):
        slots.admit(seq)
        slots.grow(seq, 64)
        seq.num_computed = 64
        slots.advance(seq)
        slots.grow(seq, 128)
        slots.check([seq])
        slots.release(seq)
        seq.num_computed = 0
        slots.check([])


def test_no_more_sequences_than_windows() -> None:
    slots = StateSlots(1)
    slots.admit(sequence())
    with pytest.raises(IntegrityError, match="finds no window"):
        slots.admit(sequence("b"))


def test_the_check_sees_a_slot_that_is_lost_or_held_twice() -> None:
    slots, a, b = StateSlots(2), sequence("a"), sequence("b")
    for seq in (a, b):
        slots.admit(seq)
        slots.grow(seq, 64)
        seq.num_computed = 64
        slots.advance(seq)
    slots.check([a, b])
    with pytest.raises(IntegrityError):
        slots.check([a])
    b.state_slot = a.state_slot
    with pytest.raises(IntegrityError):
        slots.check([a, b])


@pytest.mark.parametrize("seed", range(20))
def test_random_lives_never_share_a_slot(seed: int) -> None:
    rng, slots = random.Random(seed), StateSlots(4)
    running: list[Sequence] = []
    for i in range(300):
        if len(running) < 4 and rng.random() < 0.3:
            running.append(sequence(str(i)))
            slots.admit(running[-1])
        for seq in running:
            end = seq.num_computed + rng.randint(1, 150)
            slots.grow(seq, end)
            if rng.random() < 0.9:
                seq.num_computed = end
                slots.advance(seq)
            slots.check(running)
            held = [s for one in running for s in (one.state_slot, *one.grid_slots) if s > 0]
            assert len(set(held)) == len(held) < num_slots(4)
        if running and rng.random() < 0.3:
            seq = running.pop(rng.randrange(len(running)))
            slots.release(seq)
            slots.check(running)
