"""Nemotron Nano: <TOOLCALL>[{"name": ..., "arguments": ...}]</TOOLCALL>."""

from __future__ import annotations

from milepost.server.parsers.calls import Calls
from milepost.server.parsers.family import Family, Traits
from milepost.server.parsers.json_calls import read_calls
from milepost.server.parsers.source import Reading, Source
from milepost.structured_outputs import CallForm

OPEN, CLOSE = "<TOOLCALL>", "</TOOLCALL>"


def read(source: Source, calls: Calls, tag: str) -> Reading[None]:
    yield from read_calls(source, calls)
    yield from source.skip_space()
    yield from source.take(CLOSE)


def _form(traits: Traits) -> CallForm:
    return CallForm(separator=", ", opening=f"{OPEN}[", closing=f"]{CLOSE}")


NEMOTRON = Family("nemotron", lambda traits: OPEN in traits.template, (OPEN,), read, inner=(CLOSE,), form=_form)
