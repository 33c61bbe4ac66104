"""DeepSeek V3 and R1 (function<sep>name, then JSON in a code block) and V3.1 (name<sep>JSON), several calls a block."""

from __future__ import annotations

from milepost.server.parsers.calls import MAX_NAME_CHARS, Bounded, Calls, NotACall
from milepost.server.parsers.family import Family, Traits
from milepost.server.parsers.json_calls import stream_object
from milepost.server.parsers.source import Reading, Source
from milepost.structured_outputs import CallForm


def _tag(name: str) -> str:
    """Its tags are made with a wide bar and a low block."""
    return f"<\uff5c{name.replace(' ', chr(0x2581))}\uff5c>"


OPEN, CLOSE = _tag("tool calls begin"), _tag("tool calls end")
CALL, CALL_END, SEPARATOR = _tag("tool call begin"), _tag("tool call end"), _tag("tool sep")
FENCE = "```"


def read(source: Source, calls: Calls, tag: str) -> Reading[None]:
    """From the tag of the block, or of a call where that is left out."""
    if tag == OPEN:
        yield from source.skip_space()
        yield from source.take(CALL)
    while True:
        yield from _call(source, calls)
        yield from source.skip_space()
        if not (yield from source.take(CALL)):
            yield from source.take(CLOSE)
            return


def _call(source: Source, calls: Calls) -> Reading[None]:
    head = Bounded(MAX_NAME_CHARS)
    found = yield from source.until((SEPARATOR, "\n", "{"), head.write)
    if found == "{":
        source.skip(-1)
    name = head.whole
    if name.strip() == "function":
        rest = Bounded(MAX_NAME_CHARS)
        yield from source.until(("\n",), rest.write)
        name = rest.whole
    calls.start(name)
    yield from source.skip_space()
    if (yield from source.take(FENCE)):
        yield from source.take("json")
        yield from source.skip_space()
    if not (yield from source.more()) or source.next_char != "{":
        raise NotACall
    yield from stream_object(source, calls)
    calls.end()
    yield from source.skip_space()
    yield from source.take(FENCE)
    yield from source.skip_space()
    yield from source.take(CALL_END)
    source.keep()


def _form(traits: Traits) -> CallForm:
    if FENCE in traits.template:
        return CallForm(f"{CALL}function{SEPARATOR}", "\n```json\n", f"\n```{CALL_END}", "\n", OPEN, CLOSE)
    return CallForm(CALL, SEPARATOR, CALL_END, "", OPEN, CLOSE)


DEEPSEEK = Family(
    "deepseek",
    lambda traits: OPEN in traits.template,
    (OPEN, CALL),
    read,
    inner=(CLOSE, CALL_END, SEPARATOR),
    form=_form,
)
