"""Responses that are kept in memory, so that later ones can go on from them: one store for each API key.

A response holds the one it went on from, as long as anything goes on from that: each item is kept once, however long
the conversation. What is kept is JSON, whose bytes are what it takes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from pydantic_core import from_json, to_json

from milepost.errors import RequestError
from milepost.server.responses_items import ResponseItem

MAX_BYTES = 64 * 1024 * 1024
MAX_RESPONSES = 4096

EXTRA_BYTES = 1024
"""What a response takes beside its JSON: objects and entries in tables, about."""


@dataclass(eq=False, slots=True)
class Turn:
    """A response that has ended: JSON of its own input items and of itself, its output items' ids, and the response it
    went on from. `num_holders`: entries of the store and later responses that need it."""

    id: str
    parent: Turn | None
    items_json: bytes
    response_json: bytes
    output_ids: tuple[str, ...]
    num_holders: int = 0

    @property
    def num_bytes(self) -> int:
        return len(self.items_json) + len(self.response_json) + EXTRA_BYTES

    @property
    def items(self) -> list[ResponseItem]:
        found: list[ResponseItem] = from_json(self.items_json)
        return found

    @property
    def output(self) -> list[ResponseItem]:
        found: list[ResponseItem] = from_json(self.response_json)["output"]
        return found


def new_turn(response: dict[str, Any], items: Sequence[ResponseItem], parent: Turn | None) -> Turn:
    ids = tuple(str(item["id"]) for item in response["output"])
    spelled = [to_json(value, inf_nan_mode="null") for value in (list(items), response)]
    return Turn(str(response["id"]), parent, spelled[0], spelled[1], ids)


def history(turn: Turn | None) -> list[ResponseItem]:
    """All items of a conversation up to the end of `turn`, in their order."""
    turns: list[Turn] = []
    while turn is not None:
        turns.append(turn)
        turn = turn.parent
    return list(chain.from_iterable((*one.items, *one.output) for one in reversed(turns)))


@dataclass
class ResponseStore:
    """The least recently used responses go first, where there are more than `max_responses` or `max_bytes`."""

    max_bytes: int = MAX_BYTES
    max_responses: int = MAX_RESPONSES
    num_bytes: int = 0
    _turns: OrderedDict[str, Turn] = field(default_factory=OrderedDict)
    _by_output: dict[str, Turn] = field(default_factory=dict)

    def add(self, turn: Turn) -> None:
        self._turns[turn.id] = turn
        self._hold(turn)
        while self._turns and (self.num_bytes > self.max_bytes or len(self._turns) > self.max_responses):
            _, oldest = self._turns.popitem(last=False)
            self._release(oldest)

    def get(self, response_id: str) -> Turn | None:
        turn = self._turns.get(response_id)
        if turn is not None:
            self._turns.move_to_end(response_id)
        return turn

    def remove(self, response_id: str) -> bool:
        """Whether it was there. What later responses need of it stays with them."""
        turn = self._turns.pop(response_id, None)
        if turn is not None:
            self._release(turn)
        return turn is not None

    def output_items(self) -> Callable[[str], ResponseItem | None]:
        """Finds items by their ids, for one request: each response is read from its JSON once."""
        read: dict[str, dict[str, ResponseItem]] = {}

        def find(item_id: str) -> ResponseItem | None:
            turn = self._by_output.get(item_id)
            if turn is None:
                return None
            if turn.id not in read:
                read[turn.id] = {item["id"]: item for item in turn.output}
            return read[turn.id][item_id]

        return find

    def _hold(self, turn: Turn | None) -> None:
        while turn is not None:
            turn.num_holders += 1
            if turn.num_holders > 1:
                return
            self.num_bytes += turn.num_bytes
            self._by_output |= dict.fromkeys(turn.output_ids, turn)
            turn = turn.parent

    def _release(self, turn: Turn | None) -> None:
        while turn is not None:
            turn.num_holders -= 1
            if turn.num_holders > 0:
                return
            self.num_bytes -= turn.num_bytes
            for item_id in turn.output_ids:
                del self._by_output[item_id]
            turn = turn.parent


def not_found(response_id: str, param: str) -> RequestError:
    return RequestError(
        f"Response with id '{response_id[:64]}' not found.",
        "it was not stored, has made room for later ones, or is another key's",
        status=404,
        param=param,
    )
