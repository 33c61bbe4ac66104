"""The walk that proves that the cache's books balance. For tests and for finding faults; it looks at everything."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from milepost.cache.keys import BLOCK_BYTES, TOKEN_BYTES, pack
from milepost.cache.memory import Ids, IntegrityError, Memory
from milepost.cache.pins import Pin
from milepost.cache.policies.policy import Thing
from milepost.cache.retention import floor_to_grid
from milepost.cache.states import Holding, States
from milepost.cache.store import Store
from milepost.cache.tree import Hold, Node, Tree, ancestors, containing
from milepost.request import Sequence
from milepost.specs import BLOCK_SIZE, CHUNK

Holdings = Mapping[Sequence, Holding]


def check(store: Store, holdings: Holdings, states: States | None, pins: list[Pin]) -> None:
    """Raises IntegrityError unless, with `holdings` of all sequences that are admitted, and with `pins`:

    - every block and slot in use belongs to the tree or to one sequence, and everything else is free, once;
    - the tree hangs together: each node continues its parent under its own first block, checkpoints lie on the grid
      inside it, and it counts the holds that end in it and below it;
    - the sums by which memory is handed out are those of the tree, and whatever could go is known to the policy;
    - what a sequence shares is what its tokens say, at the same place, with its rows computed and sound, and the state
      it goes on from is that of its last grid point;
    - no limit is passed.
    """
    holds = [hold for holding in holdings.values() for hold in (holding.hold, holding.loan) if hold is not None]
    _check_tree(store, [*holds, *(pin.hold for pin in pins)])
    _check_sums(store, holdings, pins)
    for seq, holding in holdings.items():
        _check_sequence(store, seq, holding)
    _check_owners(store, holdings, states)
    _check_limits(store.memory)


def _require(truth: bool, message: str) -> None:
    if not truth:
        raise IntegrityError(message)


def _check_tree(store: Store, holds: list[Hold]) -> None:
    tree, has_kv = store.tree, store.memory.block_bytes > 0
    ends = Counter(id(hold.node) for hold in holds)
    below = Counter(id(node) for hold in holds for node in ancestors(hold.node))
    nodes = list(tree)
    for node in nodes:
        where = f"the node of tokens {node.start} to {node.end}"
        _check_shape(tree, node, where, has_kv)
        _require(len(node.ends) == ends[id(node)], f"{where} counts {len(node.ends)} holds that end in it")
        _require(node.below == below[id(node)], f"{where} counts {node.below} holds below it, not {below[id(node)]}")
        _require(all(hold.node is node for hold in node.ends), f"{where} lists a hold that ends elsewhere")
        deepest = node.end if node.below else max((hold.depth for hold in node.ends), default=node.start)
        _require(node.held == deepest - node.start, f"{where} counts {node.held} held tokens")
        things: list[Thing] = [node, *node.checkpoints]
        for thing in things:
            _require(bool(thing.entry) or not store.may_go(thing), f"{where} has what could go and is not offered")
        for checkpoint in node.checkpoints:
            inside = node.start < checkpoint.depth <= node.end and checkpoint.depth % CHUNK == 0
            _require(inside and checkpoint.node is node, f"{where} has a checkpoint at {checkpoint.depth}")
        depths = [checkpoint.depth for checkpoint in node.checkpoints]
        _require(depths == sorted(set(depths)), f"{where} has checkpoints at {depths}")
    known = {id(node) for node in nodes}
    _require(all(id(hold.node) in known for hold in holds), "a hold ends in a node that is gone")


def _check_shape(tree: Tree, node: Node, where: str, has_kv: bool) -> None:
    num_blocks = node.length // BLOCK_SIZE if has_kv else 0
    _require(len(node.tokens) % BLOCK_BYTES == 0 and len(node.blocks) == num_blocks, f"{where} has other blocks")
    if node.parent is None:
        _require(tree.roots.get(node.scope) is node and not node.length, f"{where} is a root and has tokens")
        _require(bool(node.children or node.ends), f"the root of {node.scope!r} is empty and kept")
    else:
        _require(node.length > 0 and node.start == node.parent.end, f"{where} does not continue its parent")
        _require(node.parent.children.get(node.key) is node, f"{where} is filed under another's tokens")
        _require(node.scope == node.parent.scope, f"{where} is in another scope than its parent")
        useful = has_kv or node.children or node.held == node.length or node.deepest_checkpoint == node.end
        _require(bool(useful), f"{where} is kept for nothing")


def _check_sums(store: Store, holdings: Holdings, pinned_prefixes: list[Pin]) -> None:
    tree = store.tree
    nodes = list(tree)
    checkpoints = [checkpoint for node in nodes for checkpoint in node.checkpoints]
    pins = Counter(id(holding.state) for holding in holdings.values() if holding.state is not None)
    pins.update(id(pin.checkpoint) for pin in pinned_prefixes if pin.checkpoint is not None)
    for checkpoint in checkpoints:
        pinned = pins.pop(id(checkpoint), 0)
        _require(checkpoint.pins == pinned, f"slot {checkpoint.slot} counts {checkpoint.pins} pins, not {pinned}")
    _require(not pins, "a sequence starts from a state that is gone, or it is pinned")
    _require(tree.num_tokens == sum(node.length for node in nodes), "the sum of tokens is wrong")
    _require(tree.num_held == sum(node.held for node in nodes), "the sum of held tokens is wrong")
    _require(tree.num_checkpoints == len(checkpoints), "the number of checkpoints is wrong")
    _require(tree.num_pinned == sum(c.pins > 0 for c in checkpoints), "the number of pinned checkpoints is wrong")


def _check_sequence(store: Store, seq: Sequence, holding: Holding) -> None:
    name, hold = seq.request_id, holding.hold
    to_copy = 0 if holding.end is None else seq.num_computed % BLOCK_SIZE
    _require(seq.num_computed - to_copy <= len(seq.block_table) * BLOCK_SIZE, f"{name} has rows that are in no block")
    _require(all(p > seq.num_computed and p % CHUNK == 0 for p in holding.planned), f"{name} plans a past state")
    if hold is not None:
        sound = seq.num_computed if seq.num_sound is None else min(seq.num_computed, seq.num_sound)
        _require(hold.depth <= sound and hold.depth % BLOCK_SIZE == 0, f"{name} shares rows that are not computed")
        path = [*reversed(list(ancestors(hold.node))), hold.node]
        packed = bytearray()
        pack(packed, seq.tokens)
        shared = b"".join(part.tokens for part in path)[: hold.depth * TOKEN_BYTES]
        _require(shared == packed[: len(shared)], f"{name} shares other tokens than its own")
        _require(containing(hold.node, hold.depth) is hold.node, f"the hold of {name} ends in another node")
        if store.memory.block_bytes:
            blocks = [block for part in path for block in part.blocks][: hold.depth // BLOCK_SIZE]
            _require(blocks == seq.block_table[: len(blocks)], f"{name} shares blocks that are not in its table")
    if store.memory.checkpoint_bytes:
        depth, state = floor_to_grid(seq.num_computed), holding.state
        _require((seq.state_slot > 0) == (depth > 0), f"{name} lacks the state after {depth} tokens")
        if state is not None:
            right = state.slot == seq.state_slot and state.depth == depth and hold is not None
            _require(right and hold is not None and _on_path(hold.node, state.node), f"{name} has another's state")


def _on_path(node: Node, above: Node | None) -> bool:
    return node is above or any(part is above for part in ancestors(node))


def _check_owners(store: Store, holdings: Holdings, states: States | None) -> None:
    blocks, slots = Counter[int](), Counter[int]()
    for node in store.tree:
        blocks.update(node.blocks)
        slots.update(checkpoint.slot for checkpoint in node.checkpoints)
    blocks.update(end.block for end in store.ends if end.block is not None)
    for seq, holding in holdings.items():
        if store.memory.block_bytes:
            blocks.update(seq.block_table[0 if holding.hold is None else holding.hold.depth // BLOCK_SIZE :])
        if states is not None:
            slots.update(states.own_slots(seq, holding))
    _check_ids(store.memory.blocks, blocks)
    _check_ids(store.memory.slots, slots)
    if states is not None:
        kept = [end.slot for end in store.ends]
        windows = Counter([*states.free_windows, *kept, *(seq.window_slot for seq in holdings)])
        _require(windows == Counter(range(states.num_windows)), f"windows are held or free more than once: {windows}")


def _check_ids(ids: Ids, owned: Counter[int]) -> None:
    used, free = ids.used(), [*ids.warm, *ids.cold]
    _require(all(count == 1 for count in owned.values()), f"a {ids.name} has two owners: {owned.most_common(1)}")
    _require(used == set(owned), f"{ids.name}s in use and with an owner differ in {sorted(used ^ set(owned))}")
    _require(len(used) == ids.num_used, f"{ids.num_used} {ids.name}s are said to be in use, and {len(used)} are")
    _require(len(free) == len(set(free)) and used.isdisjoint(free), f"a {ids.name} is free twice, or in use too")
    _require(len(free) + len(used) == ids.count, f"a {ids.name} is lost")


def _check_limits(memory: Memory) -> None:
    _require(memory.used_bytes <= memory.limit_bytes, f"{memory.used_bytes} of {memory.limit_bytes} bytes are in use")
    _require(memory.resident_bytes <= memory.limit_bytes, f"{memory.resident_bytes} bytes are resident")
