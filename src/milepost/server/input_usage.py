"""Input tokens of a request, and how far later ones can resume: what both APIs count them from."""

from __future__ import annotations

from dataclasses import dataclass

from milepost.server.prompts import Prompt
from milepost.server.state import Engine


@dataclass(frozen=True)
class InputUsage:
    """`num_stored_tokens`: the place up to which a later request with the last breakpoint can resume, 0 without one;
    `num_resumable_tokens`: one that goes on from the whole prompt."""

    num_prompt_tokens: int
    num_stored_tokens: int
    num_resumable_tokens: int


def input_usage(engine: Engine, prompt: Prompt) -> InputUsage:
    """Sequences resume at places of the cache's grid, so that a breakpoint counts up to the last before it."""
    cache, num_tokens = engine.cache_snapshot(), len(prompt.ids)
    places = (max(prompt.places.breakpoints, default=0), num_tokens) if cache.enabled else (0, 0)
    return InputUsage(num_tokens, *(place // cache.unit * cache.unit for place in places))
