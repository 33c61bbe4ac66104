"""One sample on its way through the engine."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Literal, Protocol

from milepost.sampling_params import SamplingParams


class Status(Enum):
    """A preempted sequence is WAITING again, with nothing computed."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


MissReason = Literal["no prefix", "diverged", "state thinned", "evicted", "too short", "reading disabled", "not finite"]
"""Why a sequence computes tokens that it might have resumed.

no prefix         nothing that is known begins like it
diverged          what is known goes on otherwise
state thinned     its keys and values were there, the recurrent state to go on from was not
evicted           what goes on like it was known, and had to make room
too short         shorter than what can be resumed at all
reading disabled  prefix caching is off, or the request needs every row of its prompt or asked not to read
not finite        from there on the model's results were NaN or infinite when this text was read before
"""


@dataclass(frozen=True, slots=True)
class Miss:
    """`position`: the first token that was not found: where the texts part, or known text or its state ends."""

    reason: MissReason
    position: int


class Constraint(Protocol):
    """What a sample's answer must look like: see `engine/constraint.py`."""

    def allowed(self, tokens: list[int], first: int) -> bytes: ...
    def take(self, token: int) -> bool: ...


@dataclass(frozen=True, slots=True)
class Copies:
    """What a sequence that resumes between grid points goes on from: a window slot, and the KV block whose first rows
    are those of its own last block (None: its rows fill whole blocks)."""

    window_slot: int
    block: int | None


@dataclass(eq=False, slots=True)
class Sequence:
    """One sample of a request (a request with n samples is n sequences that share a prompt).

    `tokens` holds the prompt and what was generated; rows `[0, num_computed)` have been run and their KV is stored in
    `block_table` (block i holds tokens 16 i to 16 i + 15). Their recurrent states are in `state_slot`, as of the last
    grid point, and `window_slot`, since then; the next step writes to `grid_slots` (see `Rows` in `ops/`), and begins
    with `copies` into its window and its last block, if there are any. A step runs rows `[num_computed, end)`; when
    `end` reaches `len(tokens)` its last row gives the next token. Prefill and decode
    are the same thing: computed rows catching up.

    For the prefix cache: `packed` are the first tokens as uint32, as far as they were needed; tokens are only ever
    added. `boundaries` and `breakpoints` are numbers of tokens after which prompts are expected to part, by the form of
    the chat (a message ends or begins there) and by the word of the client. From row `num_sound` on nothing may be
    shown to others (None: all is sound). Of its first admission the cache says how many tokens' keys and values
    it found (`num_matched_tokens`), how many tokens need not be computed (`num_cached_tokens`), and in `miss` why
    they were not more; None: all that is known and can be resumed was.

    `constraint`: which tokens may be drawn; this sample's own.
    """

    request_id: str
    tokens: list[int]
    num_prompt_tokens: int
    params: SamplingParams
    index: int = 0
    seed: int = 0
    priority: int = 0
    arrival_time: float = 0.0
    cache_salt: str = ""
    constraint: Constraint | None = field(default=None, repr=False)
    status: Status = Status.WAITING
    num_computed: int = 0
    block_table: list[int] = field(default_factory=list)
    state_slot: int = 0
    window_slot: int = 0
    grid_slots: list[int] = field(default_factory=list)
    copies: Copies | None = None
    packed: bytearray = field(default_factory=bytearray, repr=False)
    boundaries: tuple[int, ...] = ()
    breakpoints: tuple[int, ...] = ()
    num_sound: int | None = None
    num_matched_tokens: int = 0
    num_cached_tokens: int = 0
    miss: Miss | None = None
    num_preemptions: int = 0
    first_scheduled_time: float | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None

    @property
    def num_tokens(self) -> int:
        return len(self.tokens)

    @property
    def num_output_tokens(self) -> int:
        return len(self.tokens) - self.num_prompt_tokens

    @property
    def output_token_ids(self) -> list[int]:
        return self.tokens[self.num_prompt_tokens :]
