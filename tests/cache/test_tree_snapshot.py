"""The tree, for whoever may see it."""

from __future__ import annotations

from dataclasses import replace

from trees import compute, kv_cache, sequence, serve, state_cache

from milepost.cache.tree_snapshot import MAX_CHECKPOINTS, NodeView, TreeSnapshot, tree_snapshot

TEXT = list(range(1000, 9000))


def spans(tree: TreeSnapshot) -> list[tuple[int | None, int, int]]:
    return [(node.parent, node.start, node.end) for node in tree.nodes]


def test_an_empty_cache() -> None:
    assert tree_snapshot(kv_cache(10)) == TreeSnapshot((), 0, 0)


def test_texts_that_part_and_scopes() -> None:
    cache = state_cache(200, 30)  # a block takes a byte, a state ten
    serve(cache, TEXT[:200])
    serve(cache, [*TEXT[:100], *range(100)])
    serve(cache, TEXT[:70], salt="other")
    tree = tree_snapshot(cache)
    assert (tree.num_nodes, tree.num_scopes, tree.num_left_out) == (4, 2, 0)
    by_scope = {node.scope: [n for n in tree.nodes if n.scope == node.scope] for node in tree.nodes}
    (alone,), (first, *others) = sorted(by_scope.values(), key=len)
    assert (alone.parent, alone.start, alone.end, alone.num_bytes) == (None, 0, 64, 4 + 10)
    assert (first.parent, first.start, first.end, first.hits) == (None, 0, 96, 0)
    assert [(c.position, c.kind) for c in first.checkpoints] == [(64, "grid")]
    assert {(node.parent, node.start, node.end) for node in others} == {(first.node, 96, 192)}
    assert [node.node for node in tree.nodes] == [0, 1, 2, 3]
    own = tree_snapshot(cache, "other")
    assert own == TreeSnapshot((replace(alone, node=0, scope=0),), 1, 1)
    assert tree_snapshot(cache, "nobody's") == TreeSnapshot((), 0, 0)


def test_who_uses_it() -> None:
    cache = state_cache(200, 30)
    serve(cache, TEXT[:200])
    cache.pins.add("one", TEXT[:130])
    cache.pins.add("two", TEXT[:200])
    seq = sequence(TEXT[:300])
    cache.admit(seq)
    compute(cache, seq)
    (node,) = tree_snapshot(cache).nodes
    assert (node.users, node.pinned, node.hits) == (1, 2, 1)
    assert {c.position: c.users for c in node.checkpoints} == {64: 0, 128: 1, 192: 1, 256: 1}
    cache.release(seq)
    (node,) = tree_snapshot(cache).nodes
    assert (node.users, node.pinned) == (0, 2)


def test_what_has_the_most_is_listed_and_hangs_together() -> None:
    cache = kv_cache(10_000)
    for start in range(60):
        serve(cache, [*TEXT[:64], *[start] * (32 + 16 * start)])
    serve(cache, [5] * 6000)
    tree = tree_snapshot(cache, max_nodes=10)
    assert (len(tree.nodes), tree.num_nodes, tree.num_left_out) == (10, 62, 52)
    lengths = sorted(node.end - node.start for node in tree.nodes)
    assert lengths == [64, *(32 + 16 * start for start in range(52, 60)), 6000]
    shared = next(node for node in tree.nodes if node.end == 64)
    assert [node.parent for node in tree.nodes if node.start] == [shared.node] * 8
    assert shared.parent is None


def test_a_chain_is_cut_at_its_end_not_in_the_middle() -> None:
    cache = kv_cache(10_000)
    text: list[int] = []
    for turn in range(20):
        serve(cache, [*text, *[900 + turn] * 32])
        text += [turn] * 32
    serve(cache, text)
    tree = tree_snapshot(cache, max_nodes=5)
    known = {node.node for node in tree.nodes}
    assert all(node.parent in known for node in tree.nodes if node.start)
    assert max(node.end for node in tree.nodes) < 32 * 20


def checkpoints(node: NodeView) -> list[int]:
    return [checkpoint.position for checkpoint in node.checkpoints]


def test_of_many_checkpoints_the_special_and_the_deepest_are_listed() -> None:
    cache = state_cache(1000, 500)
    seq = sequence(TEXT[:6400], breakpoints=(70, 700))
    cache.admit(seq)
    compute(cache, seq)
    cache.release(seq)
    (node,) = tree_snapshot(cache).nodes
    assert (node.num_checkpoints, len(node.checkpoints)) == (100, MAX_CHECKPOINTS)
    assert checkpoints(node) == [64, 640, *range(6400 - 29 * 64, 6401, 64)]
