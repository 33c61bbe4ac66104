"""Calls that are JSON: {"name": "f", "arguments": {...}}, one or a list of them."""

from __future__ import annotations

import json

from milepost.server.parsers.calls import Calls, NotACall
from milepost.server.parsers.source import Reading, Source

NAMES = ("name", "tool_name", "function_name")
ARGUMENTS = ("arguments", "parameters", "args")
WRAPPER = "function"
"""Some write OpenAI's own form: {"type": "function", "function": {"name": ...}}."""

BESIDES = ("type", "id", "index")
"""Keys that a call may begin with. An object that begins with another is no call."""


def read_calls(source: Source, calls: Calls) -> Reading[None]:
    """One object, or a list of objects. Raises `NotACall`."""
    yield from source.skip_space()
    if not (yield from source.take("[")):
        yield from read_call(source, calls)
        return
    while True:
        yield from read_call(source, calls)
        yield from source.skip_space()
        if not (yield from source.take(",")):
            yield from source.take("]")
            source.keep()
            return


def read_call(source: Source, calls: Calls) -> Reading[None]:
    """One object. A call whose name and arguments are there needs no proper end. Raises `NotACall`."""
    yield from source.skip_space()
    if not (yield from source.take("{")):
        raise NotACall
    yield from _Members(source, calls).read()
    calls.end()


class _Members:
    """Goes through the members of one call's object."""

    def __init__(self, source: Source, calls: Calls) -> None:
        self._source, self._calls = source, calls
        self._name: str | None = None
        self._early: str | None = None  # arguments that came before the name
        self._told = self._wrapped = False

    def read(self) -> Reading[None]:
        yield from self._object()
        if self._name is None:
            raise NotACall
        if not self._told:
            self._calls.start(self._name)
            self._calls.arguments(self._early or "{}")

    def _object(self) -> Reading[None]:
        source = self._source
        while True:
            yield from source.skip_space()
            if (yield from source.take("}")):
                return
            if self._told and not (yield from source.more()):
                return
            key = yield from _string(source)
            yield from source.skip_space()
            if not (yield from source.take(":")):
                raise NotACall
            yield from source.skip_space()
            yield from self._member(key)
            yield from source.skip_space()
            if not (yield from source.take(",")):
                if not (yield from source.take("}")) and not self._told:
                    raise NotACall
                return

    def _member(self, key: str) -> Reading[None]:
        if key in NAMES and self._name is None:
            self._name = yield from _string(self._source)
        elif key in ARGUMENTS and not self._told:
            yield from self._arguments()
        elif key == WRAPPER and not self._wrapped:
            self._wrapped = True
            if (yield from self._source.take("{")):
                yield from self._object()
            elif self._name is None:
                self._name = yield from _string(self._source)
        elif self._name is None and key not in BESIDES:
            raise NotACall
        else:
            yield from read_value(self._source)

    def _arguments(self) -> Reading[None]:
        if (yield from self._source.take("{")):
            self._source.skip(-1)
            if self._name is None:
                self._early = yield from read_value(self._source)
                return
            self._calls.start(self._name)
            self._told = True
            yield from stream_object(self._source, self._calls)
            return
        value = yield from read_value(self._source)  # an object as a text, or null
        try:
            inner = json.loads(value)
        except ValueError:
            raise NotACall from None
        if inner is not None and not isinstance(inner, str):
            raise NotACall
        self._early = inner or "{}"


def stream_object(source: Source, calls: Calls) -> Reading[None]:
    """Arguments as they are written, up to the end of the object (or of the text)."""
    scan = ValueScan()
    while (yield from source.more()):
        waiting = source.waiting
        end = scan.end_in(waiting)
        piece = waiting if end is None else waiting[:end]
        source.skip(len(piece))
        calls.arguments(piece)
        if end is not None:
            return


def read_value(source: Source) -> Reading[str]:
    """The text of a value that is not needed while it is written."""
    if not (yield from source.more()):
        raise NotACall
    if source.next_char not in '{["':
        return (yield from _scalar(source))
    scan, text = ValueScan(), ""
    while (yield from source.more()):
        waiting = source.waiting
        end = scan.end_in(waiting)
        text += waiting if end is None else waiting[:end]
        source.skip(len(waiting) if end is None else end)
        if end is not None:
            return text
    raise NotACall


def _scalar(source: Source) -> Reading[str]:
    text = ""
    while (yield from source.more()) and (source.next_char.isalnum() or source.next_char in "+-."):
        text += source.next_char
        source.skip(1)
    if not text:
        raise NotACall
    return text


def _string(source: Source) -> Reading[str]:
    if not (yield from source.more()) or source.next_char != '"':
        raise NotACall
    try:
        text: str = json.loads((yield from read_value(source)))
    except ValueError:
        raise NotACall from None
    return text


class ValueScan:
    """Finds where an object, a list or a text ends, over pieces of it."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_text = self._escaped = False

    def end_in(self, piece: str) -> int | None:
        """How many characters of `piece` belong to the value that ends in it; None: all do and it goes on."""
        for i, char in enumerate(piece):
            if self._escaped:
                self._escaped = False
            elif self._in_text:
                self._escaped = char == "\\"
                self._in_text = char != '"'
                if not self._in_text and not self._depth:
                    return i + 1
            elif char == '"':
                self._in_text = True
            elif char in "{[":
                self._depth += 1
            elif char in "}]":
                self._depth -= 1
                if self._depth <= 0:
                    return i + 1
        return None
