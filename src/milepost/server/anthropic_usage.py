"""Input tokens as Anthropic's API counts them: from the cache, newly stored, and the rest."""

from __future__ import annotations

from typing import Any

from milepost.server.input_usage import InputUsage


def input_counts(inputs: InputUsage, num_cached: int | None) -> dict[str, Any]:
    """The three add up to the prompt. None: not known yet; all is then input, and the other two are null."""
    if num_cached is None:
        return {
            "input_tokens": inputs.num_prompt_tokens,
            "cache_creation_input_tokens": None,
            "cache_read_input_tokens": None,
        }
    created = max(0, inputs.num_stored_tokens - num_cached)
    return {
        "input_tokens": inputs.num_prompt_tokens - num_cached - created,
        "cache_creation_input_tokens": created,
        "cache_read_input_tokens": num_cached,
    }
