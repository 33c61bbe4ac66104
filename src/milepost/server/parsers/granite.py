"""Granite 3: <|tool_call|>[{"name": ..., "arguments": ...}]. (Granite 4 writes as Hermes does.)"""

from __future__ import annotations

from milepost.server.parsers.calls import Calls
from milepost.server.parsers.family import Family, Traits
from milepost.server.parsers.json_calls import read_calls
from milepost.server.parsers.source import Reading, Source
from milepost.structured_outputs import CallForm

OPEN, SPELLED = "<|tool_call|>", "<tool_call>"
"""Granite 3.0 and 3.1; 3.2 spells it now and then."""


def read(source: Source, calls: Calls, tag: str) -> Reading[None]:
    yield from read_calls(source, calls)
    yield from source.skip_space()
    yield from source.take("</tool_call>")


def _form(traits: Traits) -> CallForm:
    return CallForm(separator=", ", opening=f"{OPEN}[", closing="]")


GRANITE = Family("granite", lambda traits: OPEN in traits.template, (OPEN, SPELLED), read, form=_form)
