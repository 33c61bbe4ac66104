"""The parser of one answer, whatever the family."""

from __future__ import annotations

from collections.abc import Iterator

from milepost.server.parsers.calls import Calls, NotACall, Tools
from milepost.server.parsers.events import CallArguments, Content, Event, Reasoning
from milepost.server.parsers.family import Family
from milepost.server.parsers.reasoning import Thinking
from milepost.server.parsers.source import Reading, Source
from milepost.server.parsers.writer import Writer


class AnswerParser:
    """Takes the text of one sample as it comes and gives its events.

    `family` None: no tools are offered, and what looks like a call is content. `tools`: their names and the JSON
    schemas of their arguments. `thinking` None: no tag opens reasoning. `opened`: the prompt ends inside of it.
    Calls inside of reasoning are calls; what follows them is reasoning until it is closed.
    """

    def __init__(self, family: Family | None, tools: Tools, thinking: Thinking | None, *, opened: bool = False) -> None:
        self._family, self._thinking = family, thinking
        self._events: list[Event] = []
        self._source = Source()
        self._wrapped = False
        self._writer = Writer(self._events.append, thinks=opened and thinking is not None)
        if family is not None:
            self._calls = Calls(tools, self._emit_call, self._source.keep, family.new_id, family.untagged)
        self._reading = self._read()

    def push(self, text: str) -> list[Event]:
        """The events that `text` makes certain."""
        if not text:
            return []
        self._source.feed(text)
        return self._go_on()

    def close(self) -> list[Event]:
        """The answer has ended: all that was held back."""
        self._source.ended = True
        return self._go_on()

    def _go_on(self) -> list[Event]:
        next(self._reading, None)
        found, self._events[:] = _joined(self._events), []
        return found

    def _emit_call(self, event: Event) -> None:
        self._writer.tag()
        self._events.append(event)

    def _read(self) -> Reading[None]:
        while True:
            tag = yield from self._source.until(self._tags(), self._text)
            if not tag:
                self._writer.end()
                return
            yield from self._tag(tag)

    def _text(self, text: str) -> None:
        self._writer.text(text)
        self._source.keep()

    def _tags(self) -> tuple[str, ...]:
        """What to look out for. Some tags count only where nothing visible came before them."""
        writer, thinking, family = self._writer, self._thinking, self._family
        tags = list(family.opens) if family else []
        if family and writer.fresh and not writer.thinks:
            tags += family.starts
        if thinking:
            tags += [thinking.close] if writer.thinks or writer.fresh else []
            tags += [thinking.open] if writer.fresh else []
            tags += self._wrap_tags(thinking)
        return tuple(dict.fromkeys(tags))

    def _wrap_tags(self, thinking: Thinking) -> tuple[str, ...]:
        if thinking.wrap is None or self._writer.thinks:
            return ()
        start, end = thinking.wrap
        return (end,) if self._wrapped else (start,) if self._writer.fresh else ()

    def _tag(self, tag: str) -> Reading[None]:
        writer, thinking = self._writer, self._thinking
        if tag not in self._tags():  # text came before it
            self._text(tag)
        elif thinking and tag in thinking.tags:
            writer.tag(thinks=tag == thinking.open)
            self._wrapped = thinking.wrap is not None and tag == thinking.wrap[0]
            self._source.keep()
        elif self._family:
            yield from self._block(self._family, tag)

    def _block(self, family: Family, tag: str) -> Reading[None]:
        """A block of calls; if it is none, its tag is text and what follows is read like any."""
        source, num_kept = self._source, self._source.num_kept
        try:
            yield from family.read(source, self._calls, tag)
            self._writer.tag()
            source.keep()
        except NotACall:
            self._calls.drop()
            source.rewind()
            if source.num_kept == num_kept:
                source.skip(len(tag))
                self._text(tag)


def _joined(events: list[Event]) -> list[Event]:
    """With pieces of the same text that follow each other put together."""
    return list(_join(events))


def _join(events: list[Event]) -> Iterator[Event]:
    last: Event | None = None
    for event in events:
        if isinstance(event, Content) and isinstance(last, Content):
            last = Content(last.text + event.text)
        elif isinstance(event, Reasoning) and isinstance(last, Reasoning):
            last = Reasoning(last.text + event.text)
        elif isinstance(event, CallArguments) and isinstance(last, CallArguments) and event.index == last.index:
            last = CallArguments(last.index, last.text + event.text)
        else:
            if last is not None:
                yield last
            last = event
    if last is not None:
        yield last
