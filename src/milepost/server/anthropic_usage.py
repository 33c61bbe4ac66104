"""Input tokens of a request as Anthropic's API counts them: from the cache, newly stored, and the rest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from milepost.server.prompts import Prompt
from milepost.server.state import Engine


@dataclass(frozen=True)
class InputUsage:
    """`num_stored_tokens`: the place up to which a later request with the last breakpoint can resume, 0 without one;
    `num_resumable_tokens`: one that goes on from the whole prompt."""

    num_prompt_tokens: int
    num_stored_tokens: int
    num_resumable_tokens: int

    def as_dict(self, num_cached: int | None) -> dict[str, Any]:
        """The three add up to the prompt. None: not known yet; all is then input, and the other two are null."""
        if num_cached is None:
            return {
                "input_tokens": self.num_prompt_tokens,
                "cache_creation_input_tokens": None,
                "cache_read_input_tokens": None,
            }
        created = max(0, self.num_stored_tokens - num_cached)
        return {
            "input_tokens": self.num_prompt_tokens - num_cached - created,
            "cache_creation_input_tokens": created,
            "cache_read_input_tokens": num_cached,
        }


def input_usage(engine: Engine, prompt: Prompt) -> InputUsage:
    """Sequences resume at places of the cache's grid, so that a breakpoint counts up to the last before it."""
    cache, num_tokens = engine.cache_snapshot(), len(prompt.ids)
    places = (max(prompt.places.breakpoints, default=0), num_tokens) if cache.enabled else (0, 0)
    return InputUsage(num_tokens, *(place // cache.unit * cache.unit for place in places))
