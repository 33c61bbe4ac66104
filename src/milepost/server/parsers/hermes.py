"""Hermes, Qwen 2.5 and 3, Granite 4 and many others: <tool_call>{"name": ..., "arguments": {...}}</tool_call>."""

from __future__ import annotations

from milepost.server.parsers.calls import Calls
from milepost.server.parsers.family import Family, Traits
from milepost.server.parsers.json_calls import read_calls
from milepost.server.parsers.source import Reading, Source
from milepost.server.parsers.xml_calls import FUNCTION, read_function
from milepost.structured_outputs import CallForm

OPEN, CLOSE = "<tool_call>", "</tool_call>"


def read(source: Source, calls: Calls, tag: str) -> Reading[None]:
    """One <tool_call>, with JSON in it or a <function=...>: models of either kind write the other now and then."""
    yield from source.skip_space()
    if tag == FUNCTION or (yield from source.take(FUNCTION)):
        yield from read_function(source, calls)
    else:
        yield from read_calls(source, calls)
    yield from source.skip_space()
    yield from source.take(CLOSE)


def form(traits: Traits) -> CallForm:
    return CallForm(before=f'{OPEN}\n{{"name": "', after=f"}}\n{CLOSE}")


HERMES = Family("hermes", lambda traits: OPEN in traits.template, (OPEN,), read, inner=(CLOSE,), form=form)
