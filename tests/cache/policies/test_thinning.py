"""What is at stake, on trees of one or two texts. A token of KV takes a byte, a state 100."""

from __future__ import annotations

from trees import Grove

from milepost.cache.memory import Memory
from milepost.cache.policies.policy import Thing
from milepost.cache.policies.thinning import (
    BREAKPOINT_BONUS,
    LEAF_BONUS,
    PARTING_BONUS,
    STRANDED_BONUS,
    TAU,
    Stake,
    stake_of,
)
from milepost.cache.retention import Kind
from milepost.cache.tree import Checkpoint, Node

TEXT = list(range(1000, 2000))


def stake(grove: Grove, thing: Thing, *, block_bytes: int = 16, state_bytes: int = 100) -> Stake:
    return stake_of(thing, Memory(10**6, block_bytes, state_bytes))


def text_of(num_tokens: int, *depths: int) -> tuple[Grove, Node, list[Checkpoint]]:
    """A text that nobody holds, with checkpoints of ends."""
    grove = Grove()
    hold, _, _ = grove.write(TEXT[:num_tokens])
    points = [grove.tree.add_checkpoint(hold.node, depth, slot, "end", 3.0) for slot, depth in enumerate(depths, 1)]
    grove.tree.let_go(hold, 5.0)
    return grove, hold.node, points


def test_a_checkpoint_stands_for_the_tokens_back_to_the_one_before() -> None:
    grove, _, (first, second) = text_of(256, 64, 256)
    assert stake(grove, first) == Stake(64, 100, 3.0)
    assert stake(grove, second) == Stake(192, 100, 3.0, bonus=LEAF_BONUS)


def test_a_grid_point_stands_for_fewer_where_the_next_is_near() -> None:
    grove, _, points = text_of(832, 256, 512, 576, 832)
    assert [stake(grove, point).tokens for point in points] == [256, 256, 64, 256]
    for point in points:
        point.kind = "grid"
    assert [stake(grove, point).tokens for point in points] == [256, 160, 64, 256]


def test_places_inside_have_a_bonus_where_texts_part() -> None:
    kinds: list[Kind] = ["junction", "boundary", "breakpoint", "end", "grid", "end"]
    grove, _, points = text_of(384, *range(64, 385, 64))
    for point, kind in zip(points, kinds, strict=True):
        point.kind = kind
    bonuses = [stake(grove, point).bonus for point in points]
    assert bonuses == [PARTING_BONUS, PARTING_BONUS, BREAKPOINT_BONUS, 0.0, 0.0, LEAF_BONUS]


def test_a_grid_point_has_no_bonus_even_where_it_is_the_last() -> None:
    grove, _, (point,) = text_of(64, 64)
    point.kind = "grid"
    assert stake(grove, point) == Stake(64, 100, 3.0)


def test_the_last_checkpoint_counts_the_hits_of_its_text_too() -> None:
    grove, node, (first, second) = text_of(128, 64, 128)
    node.hits, first.hits = 5, 2
    assert [stake(grove, point).hits for point in (first, second)] == [2, 5]


def test_a_tail_goes_with_the_checkpoint_at_its_end_and_what_leads_there() -> None:
    grove, node, _ = text_of(256, 64, 256)
    assert stake(grove, node) == Stake(192, 100 + 192, 5.0, bonus=LEAF_BONUS)


def test_a_tail_behind_its_last_checkpoint_is_worth_little() -> None:
    grove, node, _ = text_of(272, 64, 256)
    assert stake(grove, node) == Stake(16, 16, 5.0, bonus=STRANDED_BONUS)


def test_without_states_a_tail_is_worth_its_tokens_and_a_head_more() -> None:
    grove, node, _ = text_of(256)
    node.hits = 2
    assert stake(grove, node, state_bytes=0) == Stake(16, 16, 5.0, hits=2)
    grove.tree.trim(node, 64)
    assert stake(grove, node, state_bytes=0) == Stake(16, 16, 5.0, hits=2, bonus=PARTING_BONUS)


def order(stakes: dict[str, Stake]) -> list[str]:
    return sorted(stakes, key=lambda name: stakes[name].value)


def test_least_lost_for_each_byte_is_worth_least() -> None:
    stakes = {"few tokens": Stake(64, 100, 0), "many": Stake(640, 100, 0), "big": Stake(64, 999, 0)}
    assert order(stakes) == ["big", "few tokens", "many"]


def test_age_hits_and_bonus_count() -> None:
    stakes = {
        "young": Stake(64, 64, TAU * 1.5),
        "old": Stake(64, 64, 0),
        "old and hit once": Stake(64, 64, 0, hits=1),
        "old and twice as far": Stake(128, 64, 0.1),
        "special": Stake(64, 64, 0, bonus=2),
    }
    assert order(stakes) == ["old", "old and hit once", "old and twice as far", "young", "special"]
