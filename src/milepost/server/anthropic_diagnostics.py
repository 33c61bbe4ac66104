"""`diagnostics.cache_miss_reason`: what of a request differs from the client's previous one, so that its prompt could
not go on from that one's.

A client opts in with `"diagnostics": {"previous_message_id": null}` and names its last answer from then on. Of its
requests digests are kept, no text; `cache_control` is in none, since it is not in the prompt either.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from pydantic_core import to_json

from milepost.engine.chat_messages import CACHE_CONTROL
from milepost.server.anthropic_prompt import without_billing
from milepost.server.anthropic_schemas import InputMessage, MessagesRequest

MAX_KEPT = 4096
"""Requests of all clients together, a few hundred bytes each."""

Diagnose = Callable[[int], dict[str, Any] | None]
"""From the number of prompt tokens that came from the cache to `diagnostics`."""


@dataclass(frozen=True)
class Fingerprint:
    """Digests of a request's parts. `rest`: what else changes the prompt. `num_tokens`: those that could be resumed."""

    system: bytes
    tools: bytes
    messages: bytes
    rest: bytes
    num_messages: int
    num_tokens: int


class Fingerprints:
    """Of the last requests that opted in, by their scope and the id of their answer: nobody finds another's."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, str], Fingerprint] = OrderedDict()

    def add(self, scope: str, message_id: str, fingerprint: Fingerprint) -> None:
        self._kept[scope, message_id] = fingerprint
        if len(self._kept) > MAX_KEPT:
            self._kept.popitem(last=False)

    def get(self, scope: str, message_id: str) -> Fingerprint | None:
        return self._kept.get((scope, message_id))


def diagnosing(
    known: Fingerprints, asked: MessagesRequest, scope: str, message_id: str, num_tokens: int
) -> Diagnose | None:
    """None for a request that has not opted in. `num_tokens`: of its prompt, those that can be resumed."""
    if asked.diagnostics is None:
        return None
    own = _fingerprint(asked, num_tokens)
    known.add(scope, message_id, own)
    previous_id = asked.diagnostics.get("previous_message_id")
    if not isinstance(previous_id, str):
        return None
    previous = known.get(scope, previous_id)
    if previous is None:
        return lambda num_cached: {"cache_miss_reason": {"type": "previous_message_not_found"}}
    kind = _difference(previous, own, asked.messages)

    def diagnose(num_cached: int) -> dict[str, Any] | None:
        num_missed = previous.num_tokens - num_cached
        if kind is None or num_missed <= 0:
            return None
        told = {} if kind == "unavailable" else {"cache_missed_input_tokens": num_missed}
        return {"cache_miss_reason": {"type": kind, **told}}

    return diagnose


def _difference(previous: Fingerprint, own: Fingerprint, messages: Sequence[InputMessage]) -> str | None:
    """None: messages were added, if anything."""
    if own.system != previous.system:
        return "system_changed"
    if own.tools != previous.tools:
        return "tools_changed"
    if _digest_of_messages(messages[: previous.num_messages]) != previous.messages:
        return "messages_changed"
    return "unavailable" if own.rest != previous.rest else None


def _fingerprint(asked: MessagesRequest, num_tokens: int) -> Fingerprint:
    return Fingerprint(
        system=_digest(_uncontrolled(without_billing(asked.system))),
        tools=_digest([_uncontrolled_block(tool) for tool in asked.tools or ()]),
        messages=_digest_of_messages(asked.messages),
        rest=_digest([asked.thinking, asked.chat_template_kwargs]),
        num_messages=len(asked.messages),
        num_tokens=num_tokens,
    )


def _digest_of_messages(messages: Sequence[InputMessage]) -> bytes:
    return _digest([[message.role, _uncontrolled(message.content)] for message in messages])


def _uncontrolled(content: Any) -> Any:
    """Text or blocks, always as blocks."""
    if isinstance(content, list):
        return [_uncontrolled_block(block) for block in content]
    return [{"type": "text", "text": content}]


def _uncontrolled_block(block: Any) -> Any:
    if not isinstance(block, Mapping):
        return block
    kept = {name: value for name, value in block.items() if name != CACHE_CONTROL}
    return kept | ({"content": _uncontrolled(kept["content"])} if "content" in kept else {})


def _digest(value: Any) -> bytes:
    return blake2b(to_json(value), digest_size=16).digest()
