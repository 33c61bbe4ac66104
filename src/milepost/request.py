"""One sample on its way through the engine."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from milepost.sampling_params import SamplingParams


class Status(Enum):
    """A preempted sequence is WAITING again, with nothing computed."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(eq=False, slots=True)
class Sequence:
    """One sample of a request (a request with n samples is n sequences that share a prompt).

    `tokens` holds the prompt and what was generated; rows `[0, num_computed)` have been run and their KV is stored in
    `block_table` (block i holds tokens 16 i to 16 i + 15). Their recurrent states are in `state_slot`, as of the last
    grid point, and `window_slot`, since then; the next step writes to `grid_slots` (see `Rows` in `ops/`). A step runs
    rows `[num_computed, end)`; when `end` reaches `len(tokens)` its last row gives the next token. Prefill and decode
    are the same thing: computed rows catching up.
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
    status: Status = Status.WAITING
    num_computed: int = 0
    block_table: list[int] = field(default_factory=list)
    block_keys: list[bytes] = field(default_factory=list)
    state_slot: int = 0
    window_slot: int = 0
    grid_slots: list[int] = field(default_factory=list)
    num_cached_tokens: int = 0
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
