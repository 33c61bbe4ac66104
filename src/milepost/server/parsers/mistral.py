"""Mistral: [TOOL_CALLS][{"name": ..., "arguments": ...}], and since 2025 [TOOL_CALLS]name[ARGS]{...} for each call."""

from __future__ import annotations

import secrets
import string

from milepost.server.parsers.calls import MAX_NAME_CHARS, Calls, NotACall
from milepost.server.parsers.family import Family, Traits
from milepost.server.parsers.json_calls import read_calls, stream_object
from milepost.server.parsers.source import Reading, Source
from milepost.structured_outputs import CallForm

OPEN, ARGS, CALL_ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"


def nine_letters() -> str:
    """Mistral's templates refuse ids of any other form."""
    return "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(9))


def read(source: Source, calls: Calls, tag: str) -> Reading[None]:
    yield from source.skip_space()
    if (yield from source.more()) and source.next_char in "[{":
        yield from read_calls(source, calls)
        return
    name = yield from _name(source)
    calls.start(name)
    yield from source.skip_space()
    if not (yield from source.more()) or source.next_char != "{":
        raise NotACall
    yield from stream_object(source, calls)
    calls.end()


def _name(source: Source) -> Reading[str]:
    """Up to [ARGS], or to the object where that is left out; an id in between is the model's invention."""
    name = ""
    while (yield from source.more()) and source.next_char not in "[{\n" and len(name) < MAX_NAME_CHARS:
        name += source.next_char
        source.skip(1)
    if (yield from source.take(CALL_ID)):
        while (yield from source.more()) and source.next_char.isalnum():
            source.skip(1)
    yield from source.take(ARGS)
    return name.strip()


def _form(traits: Traits) -> CallForm:
    if ARGS in traits.template:
        return CallForm(OPEN, ARGS, "", "")
    return CallForm(separator=", ", opening=f"{OPEN}[", closing="]")


MISTRAL = Family(
    "mistral",
    lambda traits: OPEN in traits.template,
    (OPEN,),
    read,
    inner=(ARGS, CALL_ID),
    new_id=nine_letters,
    form=_form,
)
