"""Input items of the Responses API: checked, each with an id, and as the messages that chat templates read."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from milepost.engine.chat_messages import CACHE_BREAKPOINT, CACHE_CONTROL, TEXT_PARTS
from milepost.errors import RequestError
from milepost.server.fields import OpenAIMessage, bad, string_field

ResponseItem = dict[str, Any]
Stored = Callable[[str], ResponseItem | None]
"""Finds an item of an earlier answer by its id."""

PREFIXES = {"message": "msg", "function_call": "fc", "function_call_output": "fco", "reasoning": "rs"}
"""How the ids of items begin, by their type."""

ROLES = ("user", "assistant", "system", "developer")

MARKS = (CACHE_BREAKPOINT, CACHE_CONTROL)
"""Of parts: places for the cache."""

IMAGE, IMAGE_FIELDS = "input_image", ("image_url", "file_id", "detail", *MARKS)
"""A part that is told back as it was sent; the model sees that it cannot see it."""

SEALED = "milepost:"
"""Begins `encrypted_content` of ours, which is the reasoning's text and no secret: clients that keep no other field of
a reasoning item send this one back."""


def new_id(kind: str) -> str:
    return f"{PREFIXES[kind]}_{uuid.uuid4().hex}"


def read_items(sent: Any, stored: Stored) -> list[ResponseItem]:
    """`input` as items: text is one message of the user. Raises `RequestError` that names the item."""
    if sent is None:
        return []
    if isinstance(sent, str):
        sent = [{"role": "user", "content": sent}]
    if not isinstance(sent, list):
        raise bad("input", "must be text or a list of items")
    once = _once(stored)
    return [_read(item, f"input.{i}", once) for i, item in enumerate(sent)]


def messages_of(items: Iterable[ResponseItem]) -> list[OpenAIMessage]:
    """What an assistant thought, said and called in a row is one message."""
    messages: list[OpenAIMessage] = []
    names: dict[str, str] = {}
    for item in items:
        kind = item["type"]
        if kind == "function_call_output":
            messages.append(_tool_message(item, names))
        elif kind == "message" and item["role"] != "assistant":
            messages.append({"role": item["role"], "content": _text_parts(item["content"])})
        elif kind != "reasoning" or reasoning_text(item):
            if kind == "function_call":
                names[item["call_id"]] = item["name"]
            if not messages or messages[-1]["role"] != "assistant":
                messages.append({"role": "assistant", "content": None})
            add(messages[-1], item)
    for message in messages:
        if "reasoning_content" in message:
            message["reasoning_content"] = "\n".join(message["reasoning_content"])
    return messages


def reasoning_text(item: ResponseItem) -> str:
    """Empty where another server made it and keeps it to itself."""
    told = "\n".join(part["text"] for part in item.get("content") or ())
    sealed = item.get("encrypted_content") or ""
    return told or (sealed.removeprefix(SEALED) if sealed.startswith(SEALED) else "")


def add(message: OpenAIMessage, item: ResponseItem) -> None:
    """What an assistant did next, to its message, whose lists grow in place: a body has room for a million items in a
    row. The texts of reasoning are still to be joined."""
    if item["type"] == "message":
        message["content"] = message["content"] or []
        message["content"] += _text_parts(item["content"])
    elif item["type"] == "function_call":
        function = {"name": item["name"], "arguments": item["arguments"]}
        call = {"id": item["call_id"], "type": "function", "function": function}
        message.setdefault("tool_calls", []).append(call)
    else:
        message.setdefault("reasoning_content", []).append(reasoning_text(item))


def _tool_message(item: ResponseItem, names: dict[str, str]) -> OpenAIMessage:
    call_id, output = item["call_id"], item["output"]
    content = output if isinstance(output, str) else _text_parts(output)
    message = {"role": "tool", "tool_call_id": call_id, "content": content}
    return message | ({"name": names[call_id]} if call_id in names else {})


def _text_parts(parts: Sequence[ResponseItem]) -> list[dict[str, Any]]:
    """An image is left as one: what stands in its place is for all APIs the same."""
    return [_chat_part(part) | _marks(part) for part in parts]


def _chat_part(part: ResponseItem) -> dict[str, Any]:
    kind = part["type"]
    return {"type": kind} if kind == IMAGE else {"type": "text", "text": part[TEXT_PARTS[kind]]}


def _marks(part: ResponseItem) -> dict[str, Any]:
    return {name: part[name] for name in MARKS if part.get(name)}


def _read(item: Any, where: str, stored: Stored) -> ResponseItem:
    if not isinstance(item, dict):
        raise bad(where, "must be an object")
    kind = item.get("type") or ("message" if "role" in item else "item_reference")
    if kind == "item_reference":
        return _referred(string_field(item, "id", where), stored)
    if not isinstance(kind, str) or kind not in PREFIXES:
        problem = f"this server cannot read an item of type {str(kind)[:40]!r}"
        raise bad(where, problem, "leave it out, or send what it says as a message")
    item_id = item.get("id")
    head = {"id": item_id if isinstance(item_id, str) and item_id else new_id(kind), "type": kind}
    return head | _READERS[kind](item, where)


def _referred(item_id: str, stored: Stored) -> ResponseItem:
    found = stored(item_id)
    if found is None:
        raise RequestError(
            f"Item with id '{item_id[:64]}' not found.", "send the item itself", status=404, param="input"
        )
    return found


def _once(stored: Stored) -> Stored:
    """Each item may be named once, as in OpenAI's API: a few bytes a name would else become any number of long ones."""
    named: set[str] = set()

    def find(item_id: str) -> ResponseItem | None:
        if item_id in named:
            raise bad("input", f"Duplicate item found with id {item_id[:64]}", "name each item once")
        named.add(item_id)
        return stored(item_id)

    return find


def _message(item: ResponseItem, where: str) -> ResponseItem:
    role = item.get("role")
    if role not in ROLES:
        raise bad(f"{where}.role", f"must be one of {', '.join(ROLES)}")
    parts = _parts(item.get("content"), "output_text" if role == "assistant" else "input_text", f"{where}.content")
    phase = item.get("phase")
    told = {"phase": phase} if role == "assistant" and isinstance(phase, str) else {}
    return {"status": "completed", "role": role, "content": parts, **told}


def _function_call(item: ResponseItem, where: str) -> ResponseItem:
    names = ("call_id", "name", "arguments")
    return {name: string_field(item, name, where) for name in names} | {"status": "completed"}


def _function_call_output(item: ResponseItem, where: str) -> ResponseItem:
    output = item.get("output")
    read = output if isinstance(output, str) else _parts(output, "input_text", f"{where}.output")
    return {"call_id": string_field(item, "call_id", where), "output": read, "status": "completed"}


def _reasoning(item: ResponseItem, where: str) -> ResponseItem:
    """Only what was thought is read; a summary is told back."""
    read: ResponseItem = {"summary": _texts(item, "summary", "summary_text", where)}
    read["content"] = _texts(item, "content", "reasoning_text", where)
    sealed = item.get("encrypted_content")
    return read | ({"encrypted_content": sealed} if isinstance(sealed, str) else {})


def _texts(item: ResponseItem, field: str, kind: str, where: str) -> list[ResponseItem]:
    parts = item.get(field) or []
    if not isinstance(parts, list) or not all(isinstance(part, dict) for part in parts):
        raise bad(f"{where}.{field}", "must be a list of parts")
    return [{"type": kind, "text": string_field(part, "text", f"{where}.{field}.{i}")} for i, part in enumerate(parts)]


def _parts(content: Any, kind: str, where: str) -> list[ResponseItem]:
    """Text is one part of `kind`. What this model cannot read is refused by its name."""
    if isinstance(content, str):
        return [_text(content, kind)]
    if not isinstance(content, list):
        raise bad(where, "must be text or a list of parts")
    return [_part(part, kind, f"{where}.{i}") for i, part in enumerate(content)]


def _part(part: Any, kind: str, where: str) -> ResponseItem:
    if not isinstance(part, dict):
        raise bad(where, "must be an object")
    given = part.get("type")
    if given == IMAGE:
        return {"type": IMAGE, "detail": "auto"} | {name: part[name] for name in IMAGE_FIELDS if part.get(name)}
    if not isinstance(given, str) or given not in TEXT_PARTS:
        problem = f"this model reads text only, and this is a part of type {str(given)[:40]!r}"
        raise bad(where, problem, "send what it says as text, or leave it out")
    text = string_field(part, TEXT_PARTS[given], where)
    return ({"type": "refusal", "refusal": text} if given == "refusal" else _text(text, kind)) | _marks(part)


def _text(text: str, kind: str) -> ResponseItem:
    return {"type": kind, "text": text} | ({"annotations": [], "logprobs": []} if kind == "output_text" else {})


_READERS: dict[str, Callable[[ResponseItem, str], ResponseItem]] = {
    "message": _message,
    "function_call": _function_call,
    "function_call_output": _function_call_output,
    "reasoning": _reasoning,
}
