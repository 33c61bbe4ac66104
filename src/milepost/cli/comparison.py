"""What a second prompt would resume of a first, and where the two part."""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass
from typing import TYPE_CHECKING

from milepost.cache.keys import common_tokens, pack
from milepost.cache.memory import Memory
from milepost.cache.prefix_cache import PrefixCache
from milepost.cache.retention import Retention
from milepost.cli.prompt_files import FilePrompt
from milepost.engine.places import NOWHERE, Places
from milepost.errors import MilepostError, RequestError
from milepost.request import MissReason, Sequence
from milepost.sampling_params import SamplingParams

if TYPE_CHECKING:
    from milepost.engine.chat import ChatTemplate

UNIT_BYTES = 16


@dataclass(frozen=True)
class Policy:
    """What a model carries, and which states are kept (see `Retention`)."""

    has_kv: bool
    has_states: bool
    interval: int | None = None


@dataclass(frozen=True)
class Comparison:
    """Of B, of which A was read before. The first `position` tokens are the same; of `num_matched` keys and values are
    found; `num_resumed` are not computed again. `reason` and `reason_position` are those of `Miss`."""

    position: int
    num_matched: int
    num_resumed: int
    num_tokens: int
    reason: MissReason | None
    reason_position: int | None

    @property
    def num_new(self) -> int:
        """Tokens after the parting."""
        return self.num_tokens - self.position

    @property
    def num_in_part_of_a_block(self) -> int:
        """Known tokens that are computed again because they do not fill a block."""
        return self.position - self.num_matched

    @property
    def num_for_want_of_a_state(self) -> int:
        """Known tokens that are computed again because no recurrent state was kept so far down."""
        return self.num_matched - self.num_resumed


def compare(first: Many[int], second: Many[int], policy: Policy, places: Places = NOWHERE) -> Comparison:
    """Asks the engine's own cache, with room for all: `first`, with its `places`, is read and ends; `second` comes."""
    for prompt in (first, second):
        if not prompt:
            raise RequestError("a prompt is empty", "give a file with some text")
    cache = _cache(policy, len(first) + len(second))
    before, after = _sequence(first), _sequence(second)
    before.boundaries, before.breakpoints = places.boundaries, places.breakpoints
    cache.admit(before)
    cache.grow(before, before.num_tokens)
    cache.keep_states(before)
    before.num_computed = before.num_tokens
    cache.publish(before)
    cache.release(before)
    cache.admit(after)
    return Comparison(
        position=common_tokens(*map(_packed, (first, second))),
        num_matched=after.num_matched_tokens,
        num_resumed=after.num_cached_tokens,
        num_tokens=len(second),
        reason=after.miss.reason if after.miss else None,
        reason_position=after.miss.position if after.miss else None,
    )


def common_text(first: str, second: str) -> int:
    """Characters that are the same at the start."""
    pairs = zip(first, second, strict=False)
    return next((i for i, (one, other) in enumerate(pairs) if one != other), min(len(first), len(second)))


def message_at(prompt: FilePrompt, template: ChatTemplate | None, place: int) -> int | None:
    """The message, from 0 on, whose part of the text holds character `place`; the number of messages: what opens the
    answer. None for text that is no chat, or where the template does not show it.

    Found by rendering the first messages alone, of which a template may write some otherwise, or refuse.
    """
    if template is None or prompt.messages is None:
        return None
    settings = {**prompt.settings, "add_generation_prompt": False, "continue_final_message": False}
    shown = False
    for count in range(1, len(prompt.messages) + 1):
        try:
            part = template.render(prompt.messages[:count], tools=prompt.tools, **settings)
        except MilepostError:
            continue
        shown = True
        if common_text(part, prompt.text) > place:
            return count - 1
    return len(prompt.messages) if shown else None


def _cache(policy: Policy, num_tokens: int) -> PrefixCache:
    memory = Memory(
        UNIT_BYTES * (num_tokens + 64), UNIT_BYTES * policy.has_kv or 0, UNIT_BYTES * policy.has_states or 0
    )
    return PrefixCache(memory, num_seqs=1, retention=Retention(policy.interval))


def _sequence(ids: Many[int]) -> Sequence:
    return Sequence("", list(ids), len(ids), SamplingParams())


def _packed(ids: Many[int]) -> bytearray:
    packed = bytearray()
    pack(packed, list(ids))
    return packed
