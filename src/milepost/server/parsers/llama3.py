"""Llama 3.1 to 3.3: the answer is {"name": "f", "parameters": {...}}, or several with ";" between them."""

from __future__ import annotations

from milepost.server.parsers.calls import Calls
from milepost.server.parsers.family import Family, Traits
from milepost.server.parsers.json_calls import read_call, read_calls
from milepost.server.parsers.source import Reading, Source
from milepost.structured_outputs import CallForm

PYTHON_TAG = "<|python_tag|>"


def _matches(traits: Traits) -> bool:
    return "<|start_header_id|>" in traits.template and (
        PYTHON_TAG in traits.template or '"parameters"' in traits.template
    )


def read(source: Source, calls: Calls, tag: str) -> Reading[None]:
    if tag != PYTHON_TAG:
        source.skip(-len(tag))
    yield from read_calls(source, calls)
    while True:
        yield from source.skip_space()
        if not (yield from source.take(";")):
            return
        yield from read_call(source, calls)


def _form(traits: Traits) -> CallForm:
    return CallForm(between='", "parameters": ', separator="; ")


LLAMA3 = Family("llama3", _matches, (PYTHON_TAG,), read, starts=("{", "["), untagged=True, form=_form)
