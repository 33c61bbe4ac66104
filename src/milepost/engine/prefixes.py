"""Prefixes that callers have pinned: whose they are, and how much of the cache they may take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from milepost.cache.keys import prefix_id
from milepost.engine.memory import size
from milepost.engine.scheduler import Scheduler
from milepost.errors import RequestError
from milepost.outputs import PinnedPrefix

PINNED_SHARE = 0.5
"""Of the cache, what all pins together may take: the rest is for requests, and for what they leave."""


def max_pinned_bytes(limit_bytes: int, num_owners: int = 1) -> int:
    """What each of `num_owners` may pin in a cache of `limit_bytes`."""
    return int(limit_bytes * PINNED_SHARE) // num_owners


@dataclass(frozen=True, slots=True)
class PinFor:
    """Who pins. What may be pinned is divided equally among `num_owners`."""

    owner: str = ""
    num_owners: int = 1


@dataclass(frozen=True, slots=True)
class Asked:
    """A pin that waits until its tokens are computed; its bytes are spoken for."""

    prefix: PinnedPrefix
    owner: str
    tokens: Sequence[int]
    scope: str


@dataclass(frozen=True, slots=True)
class Pin:
    """Of one `owner`: others may have pinned the same. `unheard`: requests that asked for it while he has not been told
    yet that it is pinned. Empty: he has."""

    prefix: PinnedPrefix
    owner: str
    unheard: frozenset[str]


class Prefixes:
    """A pin is asked for before its prompt is computed, and settled when the request has ended: it comes about at once,
    before anything can be evicted, or not at all."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler, self._cache = scheduler, scheduler.cache
        self._pins: dict[tuple[str, str], Pin] = {}
        self._asked: dict[str, Asked] = {}

    def ask(self, tokens: Sequence[int], scope: str, pin: PinFor) -> Asked:
        """RequestError for a prefix that is too short to be resumed, or that is more than its owner may pin."""
        if len(tokens) < self._cache.unit:
            raise RequestError(
                f"a prefix of {len(tokens)} tokens cannot be pinned: nothing is resumed below {self._cache.unit}",
                "pin a longer one",
                param="prompt",
            )
        num_bytes = self._cache.memory.prefix_bytes(len(tokens))
        prefix = PinnedPrefix(prefix_id(scope, tokens), len(tokens), num_bytes)
        self._check_room(prefix, pin)
        return Asked(prefix, pin.owner, tokens, scope)

    def expect(self, request_id: str, asked: Asked) -> None:
        """The request that computes it is in line."""
        self._asked[request_id] = asked

    def settle(self, request_id: str, computed: bool) -> None:
        """The request has ended. Not `computed`: it was aborted, or failed."""
        asked = self._asked.pop(request_id, None)
        if asked is None or not computed:
            return
        self._alive()  # what was given up does not come back for all who had it
        if not self._cache.pins.add(asked.prefix.id, asked.tokens, asked.scope):
            return
        known = self._pins.get((asked.prefix.id, asked.owner))
        if known is None:
            self._keep(Pin(asked.prefix, asked.owner, frozenset({request_id})))
        elif known.unheard:
            self._keep(replace(known, unheard=known.unheard | {request_id}))

    def heard(self, request_id: str) -> None:
        """Whoever sent this request knows that its prefix is pinned: it stays, whoever else hangs up."""
        for pin in self._alive():
            if request_id in pin.unheard:
                self._keep(replace(pin, unheard=frozenset()))

    def withdraw(self, request_id: str) -> None:
        """Whoever sent this request has gone: undoes its pin, unless others asked for the same."""
        for pin in self._alive():
            if pin.unheard == {request_id}:
                self._drop(pin)
            elif request_id in pin.unheard:
                self._keep(replace(pin, unheard=pin.unheard - {request_id}))

    def is_pinned(self, name: str) -> bool:
        return name in self._cache.pins

    def pinned(self, owner: str | None = None) -> list[PinnedPrefix]:
        """Those of `owner` (None: all) that are pinned still, in the order in which they were."""
        return list({pin.prefix.id: pin.prefix for pin in self._alive() if owner in (None, pin.owner)}.values())

    def max_bytes(self, num_owners: int = 1) -> int:
        """What one of `num_owners` may pin."""
        return max_pinned_bytes(self._cache.memory.limit_bytes, num_owners)

    def unpin(self, name: str, owner: str | None = None) -> bool:
        """False if `owner` (None: whoever) has no such pin. The prefix stays while others have pinned it too."""
        found = [pin for pin in self._alive() if pin.prefix.id == name and owner in (None, pin.owner)]
        for pin in found:
            self._drop(pin)
        return bool(found)

    def _keep(self, pin: Pin) -> None:
        self._pins[pin.prefix.id, pin.owner] = pin

    def _drop(self, pin: Pin) -> None:
        del self._pins[pin.prefix.id, pin.owner]
        if all(pin.prefix.id != name for name, _ in self._pins):
            self._scheduler.unpin(pin.prefix.id)

    def _alive(self) -> list[Pin]:
        """Without those that yielded to a request, or were forgotten with the cache."""
        self._pins = {key: pin for key, pin in self._pins.items() if key[0] in self._cache.pins}
        return list(self._pins.values())

    def _check_room(self, prefix: PinnedPrefix, pin: PinFor) -> None:
        """What several owners pin counts for each of them, and once in all."""
        held: list[Pin | Asked] = [*self._alive(), *self._asked.values()]
        everybodys = {one.prefix.id: one.prefix.num_bytes for one in held}
        owners = {one.prefix.id: one.prefix.num_bytes for one in held if one.owner == pin.owner}
        if prefix.id in owners:
            return
        own, limit = sum(owners.values()), self.max_bytes(pin.num_owners)
        if prefix.num_bytes > limit:
            raise _limited(prefix, f"more than the {size(limit)} that you may pin in all", "pin a shorter one, or")
        total = sum((everybodys | {prefix.id: prefix.num_bytes}).values())
        if own + prefix.num_bytes > limit or total > self.max_bytes():
            taken = f"{size(own)} of the {size(limit)} that you may pin are pinned already"
            raise _limited(prefix, taken, "unpin one (GET /cache/prefixes lists them), or")


def _limited(prefix: PinnedPrefix, why: str, hint: str) -> RequestError:
    return RequestError(
        f"pinning {prefix.num_tokens} tokens takes {size(prefix.num_bytes)}: {why}",
        f"{hint} start with more --kv-cache-memory-bytes",
        status=409,
        code="pin_limit_exceeded",
        param="pin",
    )
