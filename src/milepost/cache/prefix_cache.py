"""The prefix cache: which rows of a sequence need not be computed, and where its KV and its states live."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Many

from milepost.cache import integrity
from milepost.cache.ends import End, Ends
from milepost.cache.keys import pack
from milepost.cache.memory import IntegrityError, Memory
from milepost.cache.misses import Lookup, explain
from milepost.cache.pins import Pins
from milepost.cache.policies.policy import Build
from milepost.cache.policies.registry import DEFAULT, POLICIES
from milepost.cache.retention import Retention, floor_to_grid
from milepost.cache.search import Found, Search
from milepost.cache.states import Holding, States
from milepost.cache.stats import CacheStats
from milepost.cache.store import Store
from milepost.cache.tree import Checkpoint, Node, Scope, Tree, ancestors, containing, count_hit, touch
from milepost.request import Copies, Miss, Sequence
from milepost.specs import BLOCK_SIZE, CHUNK

UNBOUNDED = 1 << 62
"""Tokens that fit a model without KV."""


class PrefixCache:
    """Keeps the KV blocks and recurrent states of all sequences and finds what they share.

    Who owns the tokens of a running sequence (one cell is 16 tokens; grid points, where states can be, are each 4):

        tokens        | shared | shared | shared | shared |  own   |  own   |  own.. |        |
        block_table   |   7    |   3    |   12   |   5    |   9    |   2    |   4    |
        states        0                                   ^ state_slot               ^     ^ grid_slots
                                                          resumed                    |     blocks end here until grow()
                                                                                     num_computed

        shared   blocks of the tree: read by all who hold them, written by nobody again
        own      full and computed: publish() gives them to the tree, or takes the tree's for them where it has equal
                 ones; still written by nobody again
        own..    the last block, partly computed: private, the only kind that is written
        rest     tokens without rows yet: no block, or one that grow() has just added

    A sequence resumes at the deepest checkpoint at or below the longest KV match (without states: at the match), or
    behind it, to the token, where a text has ended that goes on from there (`ends.py`): then with copies. The
    rows between are computed again, into blocks of its own. Its state is one of the tree's, pinned while the sequence
    reads it, or its own; the states that a step writes are its own until they are published.

    A sequence passes through `admit`, then any number of rounds of `grow`, `keep_states` and `publish`, then `release`,
    and may do so again.
    """

    def __init__(
        self,
        memory: Memory,
        *,
        num_seqs: int,
        retention: Retention | None = None,
        enabled: bool = True,
        policy: Build = POLICIES[DEFAULT],
        num_ends: int = 0,
        cuttable: bool = True,
    ) -> None:
        """`num_seqs` sequences may be admitted at once if the model has states: each has a window. `retention`: which
        states are kept (None: dense), as far as `policy` finds them worth their memory. Not `enabled`: sequences get
        their memory and share nothing. `num_ends` texts' ends are kept to the token, each in a window more; `cuttable`:
        their first rows serve too."""
        self.enabled = enabled
        self.stats = CacheStats()
        self.retention = retention or Retention()
        self.memory = memory
        has_states = memory.checkpoint_bytes > 0
        ends = Ends(memory, num_seqs, num_ends if enabled else 0, cuttable) if has_states else None
        self._store = Store(memory, self.stats, policy, ends)
        self._tree, self._watch = self._store.tree, self._store.policy.watch
        self._search = Search(self._store)
        self.pins = Pins(self._store)
        """Prefixes that eviction cannot have."""
        self._states = States(self._store, self.retention) if has_states else None
        self._holdings: dict[Sequence, Holding] = {}
        self.max_num_tokens = _longest(memory)
        """Tokens of the longest sequence that the memory holds when it is alone."""

    @property
    def tree(self) -> Tree:
        """What is known, to look at."""
        return self._tree

    @property
    def has_states(self) -> bool:
        return self.memory.checkpoint_bytes > 0

    @property
    def unit(self) -> int:
        """Tokens between places where a sequence can resume."""
        return CHUNK if self.has_states else BLOCK_SIZE

    @property
    def num_blocks(self) -> int:
        return self.memory.blocks.count

    @property
    def num_slots(self) -> int:
        """Checkpoint slots, that of the empty prefix included."""
        return self.memory.slots.count + 1

    @property
    def num_windows(self) -> int:
        """Window slots: one for each sequence and each end that is kept."""
        return self._store.ends.num_windows

    @property
    def num_cached_tokens(self) -> int:
        """Tokens of known prefixes, in use or not."""
        return self._tree.num_tokens

    @property
    def num_checkpoints(self) -> int:
        """States that can be resumed, in use or not."""
        return self._tree.num_checkpoints

    @property
    def available_bytes(self) -> int:
        """What grow() could hand out: free, or kept for others, used by nobody now and not pinned."""
        return self._store.available_bytes

    @property
    def usage(self) -> float:
        """Fraction of the memory that sequences hold or that is pinned, from 0 to 1."""
        return 1 - self.available_bytes / self.memory.limit_bytes

    def scope(self, seq: Sequence) -> Scope:
        """Sequences share only within a scope."""
        return seq.cache_salt

    def reads(self, seq: Sequence) -> bool:
        """Whether `seq` may resume from a cached prefix at all: not if its request says no, nor while disabled."""
        return self.enabled and seq.params.reads_prefix_cache

    def bytes_to_come(self, seq: Sequence) -> int:
        """Bytes that `seq` lacks for all its tokens and one block more, and for the states on the way."""
        blocks = -(-seq.num_tokens // BLOCK_SIZE) + 1 - len(seq.block_table)
        slots = 0 if self._states is None else self._states.to_come(seq, self._holdings[seq])
        return blocks * self.memory.block_bytes + slots * self.memory.checkpoint_bytes

    def resumable(self, seq: Sequence) -> int:
        """Tokens that `seq` would resume if it were admitted now."""
        return self._find(seq).resumed

    def promised(self, seq: Sequence, num_tokens: int) -> int:
        """The deepest place among the first `num_tokens` tokens of the admitted `seq` from where others can resume
        once it has computed them."""
        holding = self._holdings[seq]
        if holding.hold is None:
            return 0
        limit = num_tokens if seq.num_sound is None else min(num_tokens, seq.num_sound)
        if self.has_states:
            return self.retention.deepest(seq, holding.junction, limit)
        return limit // BLOCK_SIZE * BLOCK_SIZE

    def admit(self, seq: Sequence) -> int:
        """Starts `seq` on the longest prefix that is cached; returns the tokens resumed.

        At most `len(seq.tokens) - 1`, since one row at least must be computed to choose the next token; 0 for a
        sequence that does not read the cache.

        Pre:  `seq` holds nothing.
        Post: `seq.block_table` are the shared blocks and `seq.state_slot` the state after them; neither is given up
              while `seq` holds it. Where it resumes between grid points, `seq.copies` are to be made before its rows
              run, and stay as they are until publish(). `seq.num_computed` are the tokens resumed; on its first
              admission `num_matched_tokens`, `num_cached_tokens` and `miss` are set too. `available_bytes` may be
              lower.
        Undo: release().
        """
        if seq in self._holdings or seq.block_table:
            raise IntegrityError(f"{seq.request_id} is admitted while it holds blocks")
        if self._states is not None:
            self._states.admit(seq)
        holding = self._start(seq) if self.enabled else Holding(None)
        if not self.reads(seq):
            holding.query = 0, 0, 0  # it asks for nothing
            if not seq.num_preemptions:
                seq.miss = Miss("reading disabled", 0)
        self._holdings[seq] = holding
        return seq.num_computed

    def grow(self, seq: Sequence, num_tokens: int) -> bool:
        """Gives `seq` blocks for tokens [0, num_tokens) and a slot for the last grid point that they reach. False, and
        nothing changed, if the memory lacks.

        Pre:  `seq` is admitted.
        Post: on True `seq.block_table` reaches `num_tokens`; the new blocks belong to `seq` alone, contents undefined.
              Others' prefixes and states may have been given up for it. `seq.grid_slots` says where rows
              [num_computed, num_tokens) write their states; the last of them is named, and what keep_states() named.
        """
        missing = max(0, -(-num_tokens // BLOCK_SIZE) - len(seq.block_table))
        has_kv = self.memory.block_bytes > 0
        if self._states is None:
            taken = self._store.take(missing, 0) if missing else ([], [])
            blocks = None if taken is None else taken[0]
        else:
            blocks = self._states.plan_last(seq, self._holdings[seq], num_tokens, missing if has_kv else 0)
        if blocks is None:
            return False
        self._holdings[seq].stepping = True
        seq.block_table += blocks if has_kv else [0] * missing
        return True

    def keep_states(self, seq: Sequence) -> None:
        """Names slots for the other grid points of the next step whose states are to be kept, where memory can be had
        for them without giving up what is worth more.

        Pre: `seq` has grown, and so has everybody else who runs in this step: they must not lack what this takes.
        """
        if self._states is not None:
            self._states.plan_kept(seq, self._holdings[seq])

    def publish(self, seq: Sequence) -> None:
        """Lets others find the full blocks of `seq` whose rows are computed, those below `seq.num_computed`, and the
        states that these rows wrote. From row `seq.num_sound` on nothing is published.

        Where the tree has equal blocks or states already, those stay, and `seq` goes on with them.

        Pre:  `seq` is admitted, and rows [0, seq.num_computed) have run: a block found before its rows are in memory
              would hand out whatever was there.
        Post: they are findable, also after release(), until they are needed for something else. `seq.state_slot` is
              the state at the last grid point.
        """
        holding = self._holdings[seq]
        self._return_loan(seq, holding)
        if holding.query is not None:
            self._count_start(seq, holding, *holding.query)
            holding.query = None
        if holding.hold is not None:
            sound = seq.num_computed if seq.num_sound is None else min(seq.num_computed, seq.num_sound)
            end = sound // BLOCK_SIZE * BLOCK_SIZE
            if end > holding.hold.depth:
                pack(seq.packed, seq.tokens)
                self._store.publish(holding.hold, seq.packed, end, seq.block_table)
            if seq.num_sound is not None:
                pack(seq.packed, seq.tokens)
                self._store.unsound.add(self.scope(seq), seq.packed, seq.num_sound)
        if self._states is not None:
            self._states.publish(seq, holding)

    def release(self, seq: Sequence) -> None:
        """Takes back all that `seq` holds: at its end, abort or preemption.

        What is published stays findable, and the state at its last grid point becomes so, whatever the retention.

        Pre:  `seq` is admitted; IntegrityError otherwise.
        Post: `seq` holds nothing: its block table is empty, `num_computed` is 0.
        """
        holding = self._holdings.pop(seq, None)
        if holding is None:
            raise IntegrityError(f"{seq.request_id} is released and holds nothing")
        if self._states is not None:
            self._states.release(seq, holding)
        self._return_loan(seq, holding)
        own = 0 if holding.hold is None else holding.hold.depth // BLOCK_SIZE
        if self.memory.block_bytes:
            self.memory.free(seq.block_table[own:], [])
        if holding.hold is not None:
            if self._watch is not None and holding.query is None:  # and not turned back before it ran
                self._watch.left(seq, holding.hold.node, holding.hold.depth)
            self._store.let_go(holding.hold)
        seq.block_table.clear()
        seq.num_computed = 0

    def piece_end(self, seq: Sequence, start: int, limit: int) -> int:
        """Where a piece of rows of `seq` that begins at `start` and may reach `limit` has to end, in (start, limit].

        KV can be cut anywhere and states are written at every grid point inside a piece, so this is `limit`. The
        scheduler asks for every piece, and knows no other reason.
        """
        return limit

    def resident(self, tokens: Many[int], scope: Scope = "") -> int:
        """How many of these tokens a longer text would resume now, at least: what is kept behind the last state goes
        first."""
        packed = bytearray()
        pack(packed, tokens)
        return self._search.at_states(scope, packed, len(tokens)).resumed

    def reset(self) -> bool:
        """Forgets every prefix, pinned ones too; False, and nothing changed, while a sequence holds memory."""
        if self._holdings:
            return False
        self._store.clear()
        self.pins.clear()
        return True

    def check(self, sequences: Iterable[Sequence]) -> None:
        """Walks all books, given every sequence that is admitted: IntegrityError where they do not balance. Slow."""
        sequences = list(sequences)
        if set(sequences) != set(self._holdings):
            raise IntegrityError("the sequences that hold blocks are not those expected")
        integrity.check(self._store, self._holdings, self._states, list(self.pins))

    def _find(self, seq: Sequence) -> Found:
        """Nothing for a sequence that does not read."""
        if not self.reads(seq):
            return Found()
        pack(seq.packed, seq.tokens)
        scope, limit = self.scope(seq), seq.num_tokens - 1
        found = self._search.at_states(scope, seq.packed, limit)
        behind = self._search.behind(found, scope, seq.packed, limit)
        return behind if behind is found or self._can_copy(seq) else found

    def _can_copy(self, seq: Sequence) -> bool:
        """Whether there is room for all of `seq`, for states to read, write and keep, and for a block that it copies.
        With less it could wait for what it holds itself."""
        num_blocks = -(-seq.num_tokens // BLOCK_SIZE) + 2
        wanted = num_blocks * self.memory.block_bytes + 3 * self.memory.checkpoint_bytes
        return wanted <= self._store.available_bytes

    def _start(self, seq: Sequence) -> Holding:
        """Holds what `seq` resumes."""
        found = self._find(seq)
        node, resumed, checkpoint = found.node, found.resumed, found.checkpoint
        matched = max(found.matched, resumed)
        if not seq.num_preemptions:
            seq.num_matched_tokens, seq.num_cached_tokens = matched, resumed
            seq.miss = self._explain(seq, node, found.matched, resumed)
        if node is not None:
            touch(node, self._store.now())
        shared = min(resumed // BLOCK_SIZE * BLOCK_SIZE, found.matched)
        last = containing(node or self._tree.root(self.scope(seq)), shared)
        holding = Holding(self._tree.hold(last, shared), ran=resumed)
        if floor_to_grid(found.matched) > resumed and self.has_states:
            holding.junction = floor_to_grid(found.matched)
        if self._states is not None and checkpoint is not None:
            self._states.resume(seq, holding, checkpoint)
        if self.memory.block_bytes:
            path = [*reversed(list(ancestors(last))), last]
            seq.block_table = [block for part in path for block in part.blocks][: shared // BLOCK_SIZE]
        else:
            seq.block_table = [0] * (resumed // BLOCK_SIZE)
        if found.end is not None:
            self._borrow(seq, holding, found, found.end)
        seq.num_computed = resumed
        if self.reads(seq):
            holding.query, holding.found = (seq.num_tokens, matched, resumed), node
        return holding

    def _borrow(self, seq: Sequence, holding: Holding, found: Found, end: End) -> None:
        """What `seq` is to copy stays until it has."""
        end.readers += 1
        self._store.ends.use(end)
        holding.end, seq.copies = end, Copies(end.slot, found.block)
        if found.block_node is not None:
            whole = found.resumed // BLOCK_SIZE * BLOCK_SIZE
            holding.loan = self._tree.hold(found.block_node, whole + BLOCK_SIZE)

    def _return_loan(self, seq: Sequence, holding: Holding) -> None:
        seq.copies = None
        if holding.end is not None:
            holding.end.readers -= 1
            holding.end = None
        if holding.loan is not None:
            self._store.let_go(holding.loan)
            holding.loan = None

    def _explain(self, seq: Sequence, node: Node | None, matched: int, resumed: int) -> Miss | None:
        if not self.reads(seq):
            return None  # admit() says why
        found = Lookup(self.scope(seq), seq.packed, node, matched, resumed)
        forgotten, unsound = self._store.forgotten, self._store.unsound
        return explain(found, states=self.has_states, forgotten=forgotten, unsound=unsound)

    def _count_start(self, seq: Sequence, holding: Holding, asked: int, matched: int, resumed: int) -> None:
        """The first rows of `seq` have run: what it found counts, for statistics and for what is worth keeping."""
        preempted, state = seq.num_preemptions > 0, holding.state
        self.stats.count(asked, matched, resumed, preempted)
        if preempted:
            return
        if self._watch is not None and self.reads(seq):
            self._watch.came(seq, holding.found, matched, resumed)
        if seq.miss is not None:
            self.stats.misses[seq.miss.reason] += 1
        if resumed:
            self.stats.resumed_from[self._resumed_from(state)] += 1
        if state is not None:
            self.stats.checkpoints_used += not state.hits
            state.hits += 1
        if holding.found is not None:
            count_hit(holding.found, matched)

    def _resumed_from(self, state: Checkpoint | None) -> str:
        """See `CacheStats`. Without a state before it, what was resumed is the end of a short text."""
        if state is None:
            return "end" if self.has_states else "kv"
        return "answer" if state.in_answer else state.kind


def _longest(memory: Memory) -> int:
    """Tokens whose KV fits, with a slot for the first grid point that they reach and one more for all others."""
    if not memory.block_bytes:
        return UNBOUNDED
    lengths = []
    for num_slots, longest in ((0, CHUNK - 1), (1, 2 * CHUNK - 1), (2, UNBOUNDED)):
        room = (memory.limit_bytes - num_slots * memory.checkpoint_bytes) // memory.block_bytes
        lengths.append(min(room * BLOCK_SIZE, longest if memory.checkpoint_bytes else UNBOUNDED))
    return max(lengths)
