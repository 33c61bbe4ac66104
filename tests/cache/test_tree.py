"""The tree of known prefixes: growth, parting, holds and loss."""

from __future__ import annotations

import random

import pytest
from trees import Grove, packed

from milepost.cache import tree as tree_module
from milepost.cache.memory import IntegrityError
from milepost.cache.tree import ancestors, containing, count_hit

TEXT = list(range(1000, 2000))


def test_a_text_that_goes_on_alone_stays_one_node() -> None:
    grove = Grove()
    hold, table, _ = grove.write(TEXT[:32])
    for end in (48, 64, 160):
        table += range(500 + len(table), 500 + end // 16)
        grove.tree.publish(hold, packed(TEXT), end, table, 1.0)
    assert grove.shape() == [(0, 160)]
    assert hold.node.blocks == table
    assert (hold.depth, hold.node.last_use, grove.tree.num_tokens) == (160, 1.0, 160)


def test_texts_part_at_the_block_before_their_difference() -> None:
    grove = Grove()
    first, first_table, _ = grove.write(TEXT[:96])
    second, second_table, replaced = grove.write([*TEXT[:70], *[7] * 26])
    assert grove.shape() == [(0, 64), (64, 96), (64, 96)]
    assert second_table[:4] == first_table[:4]
    assert len(replaced) == 4
    assert set(replaced).isdisjoint(second_table)
    assert first.node.parent is second.node.parent
    assert (first.node.blocks, second.node.blocks) == (first_table[4:], second_table[4:])


@pytest.mark.parametrize("seed", range(20))
def test_a_match_is_the_longest_of_all_texts_in_whole_blocks(seed: int) -> None:
    rng, grove = random.Random(seed), Grove()
    texts: list[tuple[str, list[int]]] = []
    for _ in range(30):
        start = rng.choice(texts)[1][: rng.randrange(200)] if texts else []
        text = [*start, *(rng.randrange(3) for _ in range(rng.randrange(150)))]
        scope = rng.choice("ab")
        asked = text[: rng.randrange(len(text) + 1)]
        best = max((_common(asked, other) for name, other in texts if name == scope), default=0)
        assert grove.match(asked, scope) == best
        hold, table, replaced = grove.write(text, scope)
        assert len(replaced) == max((_common(text, other) for name, other in texts if name == scope), default=0) // 16
        path = [*reversed(list(ancestors(hold.node))), hold.node]
        assert [block for node in path for block in node.blocks][: len(table)] == table
        texts.append((scope, text))


def _common(a: list[int], b: list[int]) -> int:
    """Tokens of equal whole blocks."""
    blocks = 0
    while len(a) >= 16 * (blocks + 1) and a[16 * blocks :][:16] == b[16 * blocks :][:16]:
        blocks += 1
    return 16 * blocks


def test_a_match_goes_no_further_than_asked() -> None:
    grove = Grove()
    grove.write(TEXT[:96])
    assert [grove.tree.match("", packed(TEXT), limit)[1] for limit in (0, 15, 16, 50, 95, 96, 200)] == [
        0,
        0,
        16,
        48,
        80,
        96,
        96,
    ]
    assert grove.tree.match("other", packed(TEXT), 96) == (None, 0)


def test_holds_are_counted_along_their_paths() -> None:
    grove = Grove()
    tree = grove.tree
    first, _, _ = grove.write(TEXT[:96])
    second, _, _ = grove.write([*TEXT[:64], *[7] * 64])
    upper = first.node.parent
    assert upper is not None
    assert (upper.below, upper.held, first.node.held, tree.num_held) == (2, 64, 32, 160)
    third = tree.hold(upper, 32)
    tree.let_go(first, 1.0)
    assert (upper.below, first.node.held, tree.num_held) == (1, 0, 128)
    tree.let_go(second, 2.0)
    assert (upper.below, upper.held, tree.num_held, upper.last_use) == (0, 32, 32, 2.0)
    tree.move(third, first.node, 80)
    assert (upper.below, upper.held, first.node.held, tree.num_held) == (1, 64, 16, 80)
    tree.let_go(third, 3.0)
    assert tree.num_held == 0


def test_a_split_parts_holds_and_checkpoints() -> None:
    grove = Grove()
    tree = grove.tree
    hold, _, _ = grove.write(TEXT[:192])
    node = hold.node
    short = tree.hold(node, 32)
    points = [tree.add_checkpoint(node, depth, slot, "grid", 0.0) for depth, slot in ((64, 1), (128, 2), (192, 3))]
    upper = tree.split(node, 128)
    assert [point.node for point in points] == [upper, upper, node]
    assert (short.node, hold.node) == (upper, node)
    assert (upper.held, node.held, upper.below, tree.num_held) == (128, 64, 1, 192)
    tree.let_go(hold, 0.0)
    assert (upper.held, tree.num_held) == (32, 32)


def test_the_deepest_checkpoint_is_looked_for_upwards() -> None:
    grove = Grove()
    tree = grove.tree
    hold, _, _ = grove.write(TEXT[:192])
    grove.write([*TEXT[:160], *[7] * 64])
    for depth, slot in ((64, 1), (128, 2), (192, 3)):
        tree.add_checkpoint(hold.node, depth, slot, "grid", 0.0)
    found = [tree.deepest(hold.node, depth) for depth in (63, 64, 191, 192)]
    assert [point.slot if point else 0 for point in found] == [0, 1, 2, 3]
    assert tree.checkpoint_at(hold.node, 128) is found[2]
    assert tree.checkpoint_at(hold.node, 100) is None
    assert [tree.gap(point) for point in found if point] == [64, 64, 64]
    assert found[2] is not None
    tree.drop(found[2])
    assert found[3] is not None
    assert tree.gap(found[3]) == 128
    assert tree.num_checkpoints == 2


def test_a_new_checkpoint_offers_those_that_it_makes_worth_less() -> None:
    grove = Grove()
    tree = grove.tree
    first, _, _ = grove.write(TEXT[:256])
    second, _, _ = grove.write([*TEXT[:128], *[7] * 128])
    points = [tree.add_checkpoint(hold.node, 256, slot, "grid", 0.0) for hold, slot in ((first, 1), (second, 2))]
    before = tree.add_checkpoint(first.node, 64, 3, "grid", 0.0)
    grove.offers.offered.clear()
    new = tree.add_checkpoint(first.node, 128, 4, "grid", 0.0)
    assert set(map(id, grove.offers.offered)) == {id(thing) for thing in (before, *points, new)}


def test_trimming_takes_blocks_and_checkpoints_from_the_end() -> None:
    grove = Grove()
    tree = grove.tree
    hold, table, _ = grove.write(TEXT[:192])
    node = hold.node
    points = [tree.add_checkpoint(node, depth, slot, "grid", 0.0) for depth, slot in ((64, 1), (128, 2))]
    with pytest.raises(IntegrityError, match="still in use"):
        tree.trim(node, 176)
    tree.let_go(hold, 0.0)
    assert grove.offers.offered[-1] is node
    assert tree.trim(node, 112) == (table[7:], [points[1]])
    assert (grove.match(TEXT), tree.num_tokens, tree.num_checkpoints) == (112, 112, 1)
    assert tree.trim(node, 0) == (table[:7], [points[0]])
    assert (tree.roots, tree.num_tokens, tree.num_checkpoints) == ({}, 0, 0)
    assert grove.offers.gone == [points[1], points[0], node]


def test_with_its_last_child_a_node_is_offered_itself() -> None:
    grove = Grove()
    holds = [grove.write([*TEXT[:64], *[token] * 16])[0] for token in (1, 2)]
    upper = holds[0].node.parent
    for hold in holds:
        grove.tree.let_go(hold, 0.0)
    for hold in holds:
        assert upper not in grove.offers.offered
        grove.tree.trim(hold.node, 64)
    assert grove.offers.offered[-1] is upper


def test_a_pinned_checkpoint_cannot_be_dropped() -> None:
    grove = Grove()
    hold, _, _ = grove.write(TEXT[:64])
    point = grove.tree.add_checkpoint(hold.node, 64, 1, "grid", 0.0)
    grove.tree.pin(point)
    grove.tree.pin(point)
    assert grove.tree.num_pinned == 1
    with pytest.raises(IntegrityError, match="in use"):
        grove.tree.drop(point)
    grove.tree.unpin(point)
    grove.tree.unpin(point)
    assert grove.tree.num_pinned == 0
    grove.tree.drop(point)
    with pytest.raises(IntegrityError, match="gone"):
        grove.tree.drop(point)


def test_hits_count_where_all_of_a_node_was_found() -> None:
    grove = Grove()
    hold, _, _ = grove.write(TEXT[:128])
    grove.write([*TEXT[:64], 7] * 2)
    node = hold.node
    for found in (127, 128, 64, 63):
        count_hit(node, found)
    assert (node.hits, node.parent and node.parent.hits) == (1, 3)
    assert containing(node, 64) is node.parent
    assert containing(node, 65) is node


def test_a_long_text_is_matched_in_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    grove, calls = Grove(), list[int]()
    text = [i % 50_000 for i in range(100_000)]
    grove.write(text)
    grove.write([*text[:40_000], *[7] * 100])
    compare = tree_module.common_blocks

    def counted(*args: object) -> int:
        calls.append(1)
        return compare(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(tree_module, "common_blocks", counted)
    assert grove.match(text) == 100_000
    assert len(calls) == 2
