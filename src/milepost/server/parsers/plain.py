"""A template that says nothing of tool calls: JSON of a known tool at the start of the answer, or Hermes's tags."""

from __future__ import annotations

from milepost.server.parsers import hermes
from milepost.server.parsers.calls import Calls, NotACall
from milepost.server.parsers.family import Family
from milepost.server.parsers.json_calls import read_calls
from milepost.server.parsers.source import Reading, Source

FENCE = "```json"


def read(source: Source, calls: Calls, tag: str) -> Reading[None]:
    if tag == hermes.OPEN:
        yield from hermes.read(source, calls, tag)
    elif tag == FENCE:
        yield from read_calls(source, calls)
        yield from source.skip_space()
        if not (yield from source.take("```")):
            raise NotACall
    else:
        source.skip(-len(tag))
        yield from read_calls(source, calls)


PLAIN = Family(
    "plain",
    lambda traits: True,
    opens=(hermes.OPEN,),
    read=read,
    starts=("{", "[", FENCE),
    inner=(hermes.CLOSE,),
    untagged=True,
)
