"""What is kept for others, in the memory that it shares with those who run."""

from __future__ import annotations

from math import inf

from milepost.cache.ends import Ends
from milepost.cache.keys import BLOCK_BYTES, TOKEN_BYTES
from milepost.cache.memory import IntegrityError, Memory
from milepost.cache.misses import Forgotten, Unsound
from milepost.cache.policies.policy import Build, Facts, Thing
from milepost.cache.retention import Kind
from milepost.cache.stats import CacheStats
from milepost.cache.tree import Checkpoint, Hold, Node, Packed, Tree
from milepost.specs import BLOCK_SIZE, CHUNK

TICK = 1e-9
"""Between two readings of the clock."""


class Store:
    """The tree of known prefixes, the memory, and the rule by which the one makes room in the other."""

    def __init__(self, memory: Memory, stats: CacheStats, build: Build, ends: Ends | None = None) -> None:
        self.memory, self.stats = memory, stats
        self.ends = ends or Ends(memory, 0, 0, cuttable=True)
        self.policy = build(Facts(memory, self.now, self.may_go))
        self.tree = Tree(self.policy.eviction)
        self.forgotten, self.unsound = Forgotten(), Unsound()
        self._now = 0.0

    def now(self) -> float:
        """The clock of last uses: newly stored bytes, in budgets. No two readings are equal."""
        self._now += TICK
        return self._now

    @property
    def idle_bytes(self) -> int:
        """Of what is kept for others, what nobody uses now: it can be had."""
        blocks = (self.tree.num_tokens - self.tree.num_held) // BLOCK_SIZE
        blocks += self.ends.num_idle_blocks
        slots = self.tree.num_checkpoints - self.tree.num_pinned
        return blocks * self.memory.block_bytes + slots * self.memory.checkpoint_bytes

    @property
    def available_bytes(self) -> int:
        return self.memory.free_bytes + self.idle_bytes

    def take(self, num_blocks: int, num_slots: int, below: float = inf) -> tuple[list[int], list[int]] | None:
        """So many blocks and slots, at the cost of things worth less than `below`; None if those do not do."""
        memory = self.memory
        wanted = num_blocks * memory.block_bytes + num_slots * memory.checkpoint_bytes
        if wanted > self.available_bytes:
            return None
        while memory.free_bytes < wanted:
            thing = self.policy.eviction.next(below)
            if thing is None:
                if below == inf and self.ends.give_up_block():
                    continue
                if below == inf:
                    raise IntegrityError(f"{wanted} bytes can be had by the books, and nothing is left to give up")
                return None
            self._give_up(thing, wanted - memory.free_bytes)
        return memory.take(num_blocks, num_slots)

    def publish(self, hold: Hold, packed: Packed, end: int, table: list[int]) -> None:
        """See `Tree.publish`; the sequence's blocks that are not needed any more are free."""
        before = self.tree.num_tokens
        has_kv = self.memory.block_bytes > 0
        replaced = self.tree.publish(hold, packed, end, table if has_kv else [], self.now())
        self.memory.free(replaced, [])
        self._pass(self.memory.block_bytes * (self.tree.num_tokens - before) // BLOCK_SIZE)

    def add_checkpoint(self, hold: Hold, depth: int, slot: int, kind: Kind) -> Checkpoint:
        if not self.memory.block_bytes:
            self._pass(self.memory.checkpoint_bytes)
        self.stats.checkpoints_made += 1
        return self.tree.add_checkpoint(hold.node, depth, slot, kind, self.now())

    def let_go(self, hold: Hold) -> None:
        self.tree.let_go(hold, self.now())
        self.prune(hold.node, evicts=False)

    def may_go(self, thing: Thing) -> bool:
        """Whether nobody uses `thing`, nothing continues it, and it is not gone. Without KV no tail goes by itself."""
        if isinstance(thing, Node):
            return self.memory.block_bytes > 0 and not thing.children and thing.held < thing.length
        return thing.node is not None and not thing.pins

    def prune(self, node: Node, *, evicts: bool = True) -> None:
        """Without KV a prefix is known only as far as somebody holds it or a checkpoint is left. Not `evicts`: nobody
        could have resumed what goes."""
        while not self.memory.block_bytes and node.parent is not None and not node.children:
            end = max(node.start + node.held, node.deepest_checkpoint)
            if end == node.end:
                return
            self._trim(node, end, evicts)
            if node.length:
                return
            node = node.parent

    def clear(self) -> None:
        """Forgets everything; nobody may hold anything."""
        self.ends.clear()
        for node in self.tree:
            self.memory.free(node.blocks, [checkpoint.slot for checkpoint in node.checkpoints])
        self.tree.clear()
        self.policy.eviction.clear()
        self.forgotten.clear()
        self.unsound.clear()

    def _pass(self, num_bytes: int) -> None:
        self._now += num_bytes / self.memory.limit_bytes

    def _give_up(self, thing: Thing, num_bytes: int) -> None:
        """Frees `thing`, or as much of its tail as makes `num_bytes` and is worth no more than its end."""
        if isinstance(thing, Checkpoint):
            node = thing.node
            assert node is not None
            self.tree.drop(thing)
            self.memory.free([], [thing.slot])
            self.stats.checkpoints_thinned += 1
            self.prune(node)
            return
        num_blocks = -(-num_bytes // self.memory.block_bytes)
        stops = [thing.start + thing.held, thing.end - num_blocks * BLOCK_SIZE]
        if thing.deepest_checkpoint < thing.end:
            stops.append(thing.deepest_checkpoint)
        if thing.end > CHUNK:
            stops.append(CHUNK)
        self._trim(thing, max(stops))
        self.policy.eviction.offer(thing)

    def _trim(self, node: Node, end: int, evicts: bool = True) -> None:
        if evicts:
            start = (end - node.start) * TOKEN_BYTES
            self.forgotten.add(node.scope, end, bytes(node.tokens[start : start + BLOCK_BYTES]))
        blocks, gone = self.tree.trim(node, end)
        self.memory.free(blocks, [checkpoint.slot for checkpoint in gone])
        self.stats.evicted_blocks += len(blocks)
        self.stats.checkpoints_stranded += len(gone)
