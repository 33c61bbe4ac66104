"""Places of a prompt where others are expected to part from it; their recurrent states are kept whatever the retention.

    boundaries   where messages of a chat begin and end (see `chat_marks.py`)
    breakpoints  where the client set `cache_control` in a message or a tool, or said `cache_breakpoints`

A prompt has at most `MAX_PLACES` of each kind: the first two, which end the system message and the tools, and the last
ones, of the messages that are edited, asked again or stripped of their reasoning. Each is a recurrent state (of
Qwen3.5-0.8B 18.6 MiB, as much as the keys and values of 1,590 tokens) that outlives plain ones; a prompt of a thousand
messages must not fill the cache with them. A chat that grew has more all the same: each message was once the last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from milepost.errors import RequestError

MAX_PLACES = 16


@dataclass(frozen=True)
class Places:
    """Ascending numbers of characters of a text, or of tokens of a prompt, that lie before each place."""

    boundaries: tuple[int, ...] = ()
    breakpoints: tuple[int, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.boundaries or self.breakpoints)


NOWHERE = Places()


def kept(places: Iterable[int]) -> tuple[int, ...]:
    """Those of `places` that count, ascending."""
    found = tuple(sorted(set(places)))
    return found if len(found) <= MAX_PLACES else (*found[:2], *found[2 - MAX_PLACES :])


def in_tokens(places: Places, tokens_before: Callable[[int], int | None]) -> Places:
    """Places in a text as places in its tokens: `tokens_before` counts those that lie wholly before a character, and is
    None where that is not known."""
    boundaries, breakpoints = map(tokens_before, places.boundaries), map(tokens_before, places.breakpoints)
    return Places(kept(filter(None, boundaries)), kept(filter(None, breakpoints)))


def read_breakpoints(value: Any, num_tokens: int) -> tuple[int, ...]:
    """A client's `cache_breakpoints` for a prompt of `num_tokens`, checked. Raises `RequestError`."""
    if value is None:
        return ()
    if not isinstance(value, list | tuple) or not all(type(place) is int for place in value):
        raise _bad("must be a list of whole numbers", "each says how many tokens of the prompt lie before the place")
    if len(value) > MAX_PLACES:
        raise _bad(f"has {len(value)} places, and a prompt may have {MAX_PLACES}", "keep those that prompts share most")
    if any(not 0 < place <= num_tokens for place in value):
        raise _bad("has a place outside the prompt", f"this prompt has places 1 to {num_tokens}")
    if any(before >= after for before, after in pairwise(value)):
        raise _bad("must ascend", "sort them, and name each once")
    return tuple(value)


def _bad(problem: str, hint: str) -> RequestError:
    return RequestError(f"cache_breakpoints {problem}", hint, param="cache_breakpoints")
