"""`prompt_cache_diagnostics`: what of a request differs from an earlier one of the client's, so that its prompt could
not go on from that one's.

A client names the earlier response in `prompt_cache_options.comparison_response_id`. Of requests digests are kept, no
text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Any

from pydantic_core import to_json

from milepost.server.anthropic_diagnostics import Fingerprint, Fingerprints
from milepost.server.schemas import ChatRequest, Message

Diagnose = Callable[[int], dict[str, Any]]
"""From the number of prompt tokens that came from the cache to `prompt_cache_diagnostics`."""


def diagnosing(
    known: Fingerprints, scope: str, response_id: str, chat: ChatRequest, num_tokens: int, compared_id: str | None
) -> Diagnose | None:
    """None for a request that compares with no other. `num_tokens`: of its prompt, those that can be resumed."""
    own = _fingerprint(chat, num_tokens)
    known.add(scope, response_id, own)
    if compared_id is None:
        return None
    previous = known.get(scope, compared_id)
    if previous is None:
        return lambda num_cached: {"type": "comparison_response_not_found"}
    reason = _difference(previous, own, chat.messages)

    def diagnose(num_cached: int) -> dict[str, Any]:
        num_missed = previous.num_tokens - num_cached
        if num_missed <= 0:
            return {"type": "cache_hit"}
        if reason is None:  # evicted, thinned out, or something the API has no name for
            return {"type": "unavailable"}
        return {
            "type": "cache_miss",
            "reason": reason,
            "cache_missed_tokens": num_missed,
            "comparison_reusable_tokens": previous.num_tokens,
        }

    return diagnose


def _difference(previous: Fingerprint, own: Fingerprint, messages: Sequence[Message]) -> str | None:
    """None: messages were added, if anything, or template variables differ, for which the API has no name."""
    if own.tools != previous.tools:
        return "tools_changed"
    if own.rest != previous.rest:
        return "reasoning_effort_changed"
    if _digest_of(messages[: previous.num_messages]) != previous.messages:
        return "input_changed"
    return None


def _fingerprint(chat: ChatRequest, num_tokens: int) -> Fingerprint:
    """`system` stays empty: instructions are the first of the messages."""
    return Fingerprint(
        system=b"",
        tools=_digest(chat.tools or []),
        messages=_digest_of(chat.messages),
        rest=_digest(chat.reasoning_effort),
        num_messages=len(chat.messages),
        num_tokens=num_tokens,
    )


def _digest_of(messages: Sequence[Message]) -> bytes:
    """Places for the cache are no part of the prompt; nor is what an image shows."""
    return _digest([[message.role, _uncontrolled(message.content), message.model_extra] for message in messages])


def _uncontrolled(content: Any) -> Any:
    return [part.get("text") for part in content] if isinstance(content, list) else content


def _digest(value: Any) -> bytes:
    return blake2b(to_json(value), digest_size=16).digest()
