"""Chat messages as clients send them, brought into the form that chat templates read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from milepost.errors import RequestError

Message = dict[str, Any]

TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
"""Kinds of content parts that are text, and where each has it."""

CACHE_CONTROL = "cache_control"
"""Anthropic's field, which others pass on: here prompts are expected to part. It is no part of the prompt."""

CACHE_BREAKPOINT = "prompt_cache_breakpoint"
"""OpenAI's, in parts of content."""

_REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")
"""Names that clients give a message's reasoning; templates read the first, and gpt-oss's the second."""


def read_messages(messages: Sequence[Mapping[str, Any]]) -> list[Message]:
    """Copies of `messages`, checked. Raises `RequestError` that says which message is wrong and how.

    Fields that are None are left out, since templates tell a missing field from a None that they would spell out; only
    an assistant's missing content becomes "". Content is text or a list of {"type": "text", "text": ...}.
    Arguments of tool calls that are JSON text of an object become that object, which is what templates expect.
    Marks for the cache are left out, of tool calls too.
    """
    if not isinstance(messages, list | tuple):
        raise RequestError("messages must be a list", "send a list of messages", param="messages")
    if not messages:
        raise RequestError("messages is empty", "send at least one message", param="messages")
    return [_read(i, message) for i, message in enumerate(messages)]


def flat(content: Any) -> Any:
    """A list of text parts as one text, joined by line breaks (vLLM's way); other content as it is."""
    return "\n".join(part["text"] for part in content) if isinstance(content, list) else content


def parted(content: Any) -> Any:
    """A text as a list of one part; other content as it is."""
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _read(place: int, message: Mapping[str, Any]) -> Message:
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise _bad(place, "must be an object with a role")
    read = {name: value for name, value in uncontrolled(message).items() if value is not None}
    if "content" in read:
        read["content"] = _content(place, read["content"])
    elif read["role"] == "assistant":
        read["content"] = ""
    if "tool_calls" in read:
        read["tool_calls"] = [_tool_call(place, call) for call in _list(place, "tool_calls", read["tool_calls"])]
    reasoning = next((read[name] for name in _REASONING_FIELDS if name in read), None)
    if reasoning is not None:
        read["reasoning_content"] = reasoning
        read.setdefault("thinking", reasoning)
    return read


def _content(place: int, content: Any) -> str | list[Message]:
    if isinstance(content, str):
        return content
    parts = []
    for part in _list(place, "content", content):
        kind = "text" if isinstance(part, str) else part.get("type") if isinstance(part, Mapping) else None
        if not isinstance(kind, str) or kind not in TEXT_PARTS:
            raise _bad(place, f"content has a part of type {kind!r}: this model reads text only")
        text = part if isinstance(part, str) else part.get(TEXT_PARTS[kind])
        if not isinstance(text, str):
            raise _bad(place, f"content has a {kind} part without text")
        parts.append({"type": "text", "text": text})
    return parts


def _tool_call(place: int, call: Any) -> Any:
    """`call` with its arguments as an object; unchanged where they are no JSON of one: a model may have made them."""
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        raise _bad(place, "tool_calls must be objects with a function")
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            parsed = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            parsed = None
        arguments = parsed if isinstance(parsed, dict) else arguments
    return {**uncontrolled(call), "function": {**uncontrolled(function), "arguments": arguments}}


def uncontrolled(marked: Mapping[str, Any]) -> Message:
    """Without marks for the cache, which templates that write whole objects would spell out."""
    return {name: value for name, value in marked.items() if name not in (CACHE_CONTROL, CACHE_BREAKPOINT)}


def _list(place: int, field: str, value: Any) -> Sequence[Any]:
    if isinstance(value, list | tuple):
        return value
    raise _bad(place, f"{field} must be {'text or ' if field == 'content' else ''}a list")


def _bad(place: int, problem: str) -> RequestError:
    return RequestError(f"messages.{place}: {problem}", "change the message", param="messages")
