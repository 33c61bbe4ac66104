"""The tool calls of an answer: each held back until it is whole, or too long to be held."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from milepost.server.parsers.events import CallArguments, CallEnd, CallStart, Event

HOLD_CHARS = 512
"""Arguments up to this length are told once they are known to be JSON; longer ones as they come, so that a client that
waits for a whole file sees it grow. It counts characters, so that pieces change nothing."""

Tools = Mapping[str, Mapping[str, Any]]
"""The tools that a request offers: name to JSON schema of the arguments."""


MAX_NAME_CHARS = 256


class NotACall(Exception):
    """What looked like a call is none."""


class Calls:
    """Takes one call after another from a family's reader: `start`, `arguments` any number of times, `end`.

    `emit` gets the events; `settle` is called when what was read so far has become events. `only_known`: names that are
    not among `tools` are no calls.
    """

    def __init__(
        self,
        tools: Tools,
        emit: Callable[[Event], None],
        settle: Callable[[], None],
        new_id: Callable[[], str],
        only_known: bool,
    ) -> None:
        self.tools = tools
        self._emit, self._settle, self._new_id, self._only_known = emit, settle, new_id, only_known
        self._index = -1
        self._name: str | None = None
        self._held: str | None = None  # None: the call has been told

    def start(self, name: str) -> None:
        """Raises `NotACall` for what cannot be a name."""
        name = name.strip()
        if not name or not is_unicode(name) or (self._only_known and name not in self.tools):
            raise NotACall
        self._name, self._held = name, ""

    def arguments(self, text: str) -> None:
        """A piece of their JSON. Cut to where the hold ends, so that events do not depend on pieces."""
        if self._held is None:
            self._tell(text)
        elif len(self._held) + len(text) <= HOLD_CHARS:
            self._held += text
        else:
            self._announce(self._held + text)

    def end(self) -> None:
        """Raises `NotACall` when the arguments are not a JSON object, if nothing of it was told."""
        if self._held is not None:
            self._announce(_object(self._held or "{}"))
        self._emit(CallEnd(self._index))
        self._name = None
        self._settle()

    def drop(self) -> None:
        """The reader gave up. A call that was told ends where it is."""
        if self._name is not None and self._held is None:
            self._emit(CallEnd(self._index))
        self._name = self._held = None

    def _announce(self, arguments: str) -> None:
        self._index += 1
        self._held = None
        self._emit(CallStart(self._index, self._new_id(), self._name or ""))
        self._tell(arguments)

    def _tell(self, text: str) -> None:
        if text:
            self._emit(CallArguments(self._index, text))
        self._settle()


class Bounded:
    """Gathers pieces of what is read as a whole; more than `max_chars` is no call."""

    def __init__(self, max_chars: int) -> None:
        self._pieces: list[str] = []
        self._room = max_chars

    def write(self, piece: str) -> None:
        self._pieces.append(piece)
        self._room -= len(piece)
        if self._room < 0:
            raise NotACall

    @property
    def whole(self) -> str:
        return "".join(self._pieces)


def as_json(value: object) -> str:
    """JSON text of a value that was read from what a model wrote. Raises ValueError or TypeError for what JSON has
    none for."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    return text if is_unicode(text) else json.dumps(value)


def is_unicode(text: str) -> bool:
    """Whether no half of a surrogate pair is in it: escapes make them, and no answer can hold one."""
    return text.isascii() or not any("\ud800" <= char <= "\udfff" for char in text)


def _object(text: str) -> str:
    """`text` if it is a JSON object; written anew if it only lacks escapes."""
    value = _read(text, strict=True)
    as_it_is = isinstance(value, dict) and is_unicode(text)
    if value is None:
        value = _read(text, strict=False)
    if not isinstance(value, dict):
        raise NotACall
    return text if as_it_is else as_json(value)


def _read(text: str, *, strict: bool) -> object:
    """None for what is no JSON."""
    try:
        return json.loads(text, strict=strict, parse_constant=_no_number)
    except (ValueError, RecursionError):
        return None


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
