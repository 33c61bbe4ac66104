"""An answer in Anthropic's shape: the events of a stream, and the message that they add up to.

message_start                     once, as soon as the prompt is read; without what the cache gave if that takes long
ping                              while nothing else comes
content_block_start, _delta, _stop    for each block: thinking, text, tool_use
message_delta                     why it ended, and the usage
message_stop                      the end; after something failed, `error` is the end instead
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Any

from pydantic_core import from_json

from milepost.outputs import CompletionOutput
from milepost.server.answers import AnswerForm
from milepost.server.anthropic_diagnostics import Diagnose
from milepost.server.anthropic_usage import input_counts
from milepost.server.explaining import Explained
from milepost.server.generation import Job, PromptOutput, Usage
from milepost.server.input_usage import InputUsage
from milepost.server.parsers.events import CallArguments, CallEnd, CallStart, Content, Event, Reasoning
from milepost.server.state import Tokenizer

AnthropicEvent = dict[str, Any]

PING: AnthropicEvent = {"type": "ping"}

NEVER = {"stop_details": None, "container": None}
NEVER_COUNTED = dict.fromkeys(("cache_creation", "inference_geo", "server_tool_use", "service_tier"))
"""Fields that the API's schema asks for, and that say nothing here: there are no times to live, places or tiers."""

DIRECT = {"type": "direct"}
"""A call by the model itself."""


class MessageEvents:
    """The events of one answer; None, when nothing has come for a while, becomes a ping.

    `room`: tokens that the context has left for the answer. `diagnose`: for a client that asks why its prompt was not
    cached.
    """

    def __init__(
        self,
        job: Job,
        form: AnswerForm,
        tokenizer: Tokenizer | None,
        inputs: InputUsage,
        room: int,
        diagnose: Diagnose | None,
    ) -> None:
        self._job, self._reader, self._inputs, self._room = job, form.reader(), inputs, room
        self._diagnose = diagnose
        self._blocks = Blocks()
        self._usage = Usage()
        self._explained = Explained(tokenizer) if job.explains else None
        self._begun = False
        self._last = CompletionOutput(0)

    def take(self, item: PromptOutput | None) -> Iterator[AnthropicEvent]:
        if item is not None:
            self._usage.add(*item)
            if self._explained is not None:
                self._explained.add(*item)
        if not self._begun:
            self._begun = True
            yield {"type": "message_start", "message": self._message(known=item is not None)}
        if item is None:
            yield PING
            return
        (self._last,) = item[1].outputs
        yield from self._blocks.take(self._reader.take(self._last))

    def end(self) -> Iterator[AnthropicEvent]:
        yield from self._blocks.close()
        reason, sequence = self._stop()
        delta = {"stop_reason": reason, "stop_sequence": sequence, **NEVER}
        event: AnthropicEvent = {"type": "message_delta", "delta": delta, "usage": self._counts(known=True)}
        if self._explained is not None:
            event["cache"] = self._explained.as_json()
        if self._diagnose is not None:
            event["diagnostics"] = self._diagnose(self._usage.num_cached_tokens)
        yield event
        yield {"type": "message_stop"}

    def _message(self, known: bool) -> dict[str, Any]:
        return {
            "id": self._job.request_id,
            "type": "message",
            "role": "assistant",
            "model": self._job.model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            **NEVER,
            "diagnostics": self._diagnose(self._usage.num_cached_tokens) if known and self._diagnose else None,
            "usage": self._counts(known),
        }

    def _counts(self, known: bool) -> dict[str, Any]:
        cached = self._usage.num_cached_tokens if known else None
        num_thinking = self._reader.num_reasoning_tokens
        return {
            **input_counts(self._inputs, cached),
            "output_tokens": self._usage.num_completion_tokens,
            "output_tokens_details": None if num_thinking is None else {"thinking_tokens": num_thinking},
            **NEVER_COUNTED,
        }

    def _stop(self) -> tuple[str, str | None]:
        """`stop_reason` and `stop_sequence`."""
        last = self._last
        if last.finish_reason == "length":
            is_full = self._usage.num_completion_tokens >= self._room
            return ("model_context_window_exceeded" if is_full else "max_tokens"), None
        if isinstance(last.stop_reason, str):
            return "stop_sequence", last.stop_reason
        return ("tool_use" if self._reader.called else "end_turn"), None


class Blocks:
    """Content blocks, one open at a time. Text that is only space makes no block: clients could not send it back."""

    def __init__(self) -> None:
        self._index = -1
        self._open = ""
        self._digest = hashlib.sha256()

    def take(self, found: Iterable[Event]) -> Iterator[AnthropicEvent]:
        for event in found:
            match event:
                case Content(text):
                    yield from self._text(text)
                case Reasoning(text):
                    yield from self._thinking(text)
                case CallStart(id=call_id, name=name):
                    yield from self._begin("tool_use", {"id": call_id, "name": name, "input": {}, "caller": DIRECT})
                case CallArguments(text=text):
                    yield self._delta({"type": "input_json_delta", "partial_json": text})
                case CallEnd():
                    yield from self.close()

    def close(self) -> Iterator[AnthropicEvent]:
        """Ends the open block, if there is one."""
        if not self._open:
            return
        if self._open == "thinking":
            yield self._delta({"type": "signature_delta", "signature": self._digest.hexdigest()})
        self._open = ""
        yield {"type": "content_block_stop", "index": self._index}

    def _text(self, text: str) -> Iterator[AnthropicEvent]:
        if self._open != "text":
            if not text.strip():
                return
            yield from self._begin("text", {"text": "", "citations": None})
        yield self._delta({"type": "text_delta", "text": text})

    def _thinking(self, text: str) -> Iterator[AnthropicEvent]:
        if self._open != "thinking":
            self._digest = hashlib.sha256()
            yield from self._begin("thinking", {"thinking": "", "signature": ""})
        self._digest.update(text.encode("utf-8", "surrogatepass"))
        yield self._delta({"type": "thinking_delta", "thinking": text})

    def _begin(self, kind: str, fields: dict[str, Any]) -> Iterator[AnthropicEvent]:
        yield from self.close()
        self._open = kind
        self._index += 1
        yield {"type": "content_block_start", "index": self._index, "content_block": {"type": kind, **fields}}

    def _delta(self, delta: dict[str, Any]) -> AnthropicEvent:
        return {"type": "content_block_delta", "index": self._index, "delta": delta}


def message_of(events: Iterable[AnthropicEvent]) -> dict[str, Any]:
    """The message that a whole stream adds up to: what a request that is not streamed gets."""
    message: dict[str, Any] = {}
    arguments: dict[int, str] = {}
    for event in events:
        match event:
            case {"type": "message_start"}:
                message = event["message"]
            case {"type": "content_block_start"}:
                message["content"].append(event["content_block"])
            case {"type": "content_block_delta", "index": index, "delta": {"type": "input_json_delta"}}:
                arguments[index] = arguments.get(index, "") + event["delta"]["partial_json"]
            case {"type": "content_block_delta", "index": index, "delta": {"type": _, **added}}:
                block = message["content"][index]
                block |= {name: block[name] + text for name, text in added.items()}
            case {"type": "message_delta"}:
                message |= event["delta"] | {
                    name: event[name] for name in ("usage", "cache", "diagnostics") if name in event
                }
    for index, text in arguments.items():
        message["content"][index]["input"] = _object(text)
    return message


def _object(text: str) -> dict[str, Any]:
    """A call's arguments. Those of one that was cut off hold what is there."""
    try:
        value = from_json(text or "{}", allow_partial=True)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
