"""The output items of a response as they grow, and the events that tell of them.

response.output_item.added       an item begins: reasoning, message, function_call
  response.content_part.added      reasoning and messages have one part
  response.output_text.delta       or reasoning_text.delta, or function_call_arguments.delta
  response.output_text.done        the whole of it
  response.content_part.done
response.output_item.done
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from milepost.server.parsers.events import CallArguments, CallEnd, CallStart, Content, Event, Reasoning
from milepost.server.responses_items import SEALED, ResponseItem, new_id

Told = tuple[str, dict[str, Any]]
"""An event's type and its other fields, without its number."""

NAMES = {"message": "output_text", "reasoning": "reasoning_text", "function_call": "function_call_arguments"}
"""What the events of an item's text are called, by the item's type; of those with parts also the part's type."""


class Output:
    """Items, one open at a time. Space before a message's first word begins none: it waits for the word.

    `seals`: the client asked for `encrypted_content`.
    """

    def __init__(self, seals: bool) -> None:
        self._seals = seals
        self._items: list[ResponseItem] = []
        self._open: ResponseItem | None = None
        self._pieces: list[str] = []
        self._logprobs: list[dict[str, Any]] = []
        self._space = ""

    @property
    def items(self) -> list[ResponseItem]:
        """All so far, also the one that is open."""
        if self._open is None:
            return list(self._items)
        return [*self._items, self._filled(self._open, "in_progress")]

    def take(self, found: Iterable[Event], logprobs: Sequence[dict[str, Any]]) -> Iterator[Told]:
        """`logprobs`: of the tokens that brought all of this; those of text are told."""
        for event in found:
            match event:
                case Content(text):
                    yield from self._text(text, logprobs)
                    logprobs = ()
                case Reasoning(text):
                    yield from self._reasoning(text)
                case CallStart(id=call_id, name=name):
                    yield from self._begin("function_call", {"call_id": call_id, "name": name, "arguments": ""})
                case CallArguments(text=text):
                    yield self._delta(text)
                case CallEnd():
                    yield from self.close()

    def close(self, status: str = "completed") -> Iterator[Told]:
        """Ends the open item, if there is one."""
        if self._open is None:
            return
        item, self._open = self._filled(self._open, status), None
        self._items.append(item)
        place = {"item_id": item["id"], "output_index": len(self._items) - 1}
        name = NAMES[item["type"]]
        if item["type"] == "function_call":
            yield f"response.{name}.done", {**place, "name": item["name"], "arguments": item["arguments"]}
        else:
            (part,) = item["content"]
            whole = {field: value for field, value in part.items() if field in ("text", "logprobs")}
            place["content_index"] = 0
            yield f"response.{name}.done", place | whole
            yield "response.content_part.done", {**place, "part": part}
        yield "response.output_item.done", {"output_index": len(self._items) - 1, "item": item}

    def end(self, status: str, answers: bool) -> Iterator[Told]:
        """After the last event. `answers`: an answer that says nothing is an empty message."""
        space = self._space
        if self._open is None and not self._items and (answers or space):
            yield from self._begin("message", {"role": "assistant", "content": []})
            if space:
                yield self._delta(space)
        yield from self.close(status)

    def _text(self, text: str, logprobs: Sequence[dict[str, Any]]) -> Iterator[Told]:
        if not self._is_open("message"):
            self._space += text
            if not text.strip():
                self._logprobs += logprobs
                return
            text, logprobs = self._space, [*self._logprobs, *logprobs]
            yield from self._begin("message", {"role": "assistant", "content": []})
        yield self._delta(text, logprobs)

    def _reasoning(self, text: str) -> Iterator[Told]:
        if not self._is_open("reasoning"):
            yield from self._begin("reasoning", {"summary": [], "content": []})
        yield self._delta(text)

    def _is_open(self, kind: str) -> bool:
        return self._open is not None and self._open["type"] == kind

    def _begin(self, kind: str, fields: ResponseItem) -> Iterator[Told]:
        yield from self.close()
        self._pieces, self._logprobs, self._space = [], [], ""
        self._open = {"id": new_id(kind), "type": kind, "status": "in_progress", **fields}
        yield "response.output_item.added", {"output_index": len(self._items), "item": self._open}
        if kind != "function_call":
            part = self._part(kind, "", [])
            yield "response.content_part.added", self._place() | {"content_index": 0, "part": part}

    def _delta(self, text: str, logprobs: Sequence[dict[str, Any]] | None = None) -> Told:
        assert self._open is not None  # a call's arguments come after its start
        kind = self._open["type"]
        self._pieces.append(text)
        fields = self._place() | ({} if kind == "function_call" else {"content_index": 0}) | {"delta": text}
        if kind == "message":
            self._logprobs += logprobs or ()
            fields["logprobs"] = list(logprobs or ())
        return f"response.{NAMES[kind]}.delta", fields

    def _place(self) -> dict[str, Any]:
        assert self._open is not None
        return {"item_id": self._open["id"], "output_index": len(self._items)}

    def _filled(self, item: ResponseItem, status: str) -> ResponseItem:
        kind, text = item["type"], "".join(self._pieces)
        if kind == "function_call":
            return item | {"status": status, "arguments": text}
        sealed = {"encrypted_content": SEALED + text} if kind == "reasoning" and self._seals else {}
        return item | {"status": status, "content": [self._part(kind, text, list(self._logprobs))]} | sealed

    @staticmethod
    def _part(kind: str, text: str, logprobs: list[dict[str, Any]]) -> dict[str, Any]:
        more = {"annotations": [], "logprobs": logprobs} if kind == "message" else {}
        return {"type": NAMES[kind], "text": text, **more}
