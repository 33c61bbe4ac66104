"""Content blocks of Anthropic's messages as the messages that chat templates read (OpenAI's shape)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic_core import to_json

from milepost.engine.chat_messages import CACHE_CONTROL
from milepost.server.fields import OpenAIMessage, bad, string_field

Block = Mapping[str, Any]


def blocks_of(content: Any, where: str) -> list[Block]:
    """Text is one block of text. Raises `RequestError` for what is no list of blocks."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if not isinstance(content, list) or not all(isinstance(block, dict) for block in content):
        raise bad(where, "must be text or a list of blocks")
    return content


def text_parts(blocks: Sequence[Block], where: str) -> list[dict[str, Any]]:
    """Blocks that hold nothing but text, and images, of which no more is left. Others are refused by their name."""
    return [_text_part(block, f"{where}.{i}") for i, block in enumerate(blocks)]


def user_messages(blocks: Sequence[Block], where: str, names: Mapping[str, str]) -> Iterator[OpenAIMessage]:
    """Results of tools become messages of their own; the order stays. `names`: of called tools, by the call's id."""
    parts: list[dict[str, Any]] = []
    for i, block in enumerate(blocks):
        if block.get("type") != "tool_result":
            parts.append(_text_part(block, f"{where}.{i}"))
            continue
        if parts:
            yield {"role": "user", "content": parts}
            parts = []
        yield _tool_message(block, f"{where}.{i}", names)
    if parts:
        yield {"role": "user", "content": parts}


def assistant_message(blocks: Sequence[Block], where: str) -> OpenAIMessage:
    """Text, thoughts and calls, each kind together: a template writes them in its own order."""
    parts, thoughts, calls = [], [], []
    message: OpenAIMessage = {"role": "assistant"}
    for i, block in enumerate(blocks):
        kind, here = block.get("type"), f"{where}.{i}"
        if kind == "tool_use":
            calls.append(_call(block, here))
            message |= _control(block)
        elif kind == "thinking":
            thoughts.append(string_field(block, "thinking", here))
        elif kind != "redacted_thinking":  # nobody can read it
            parts.append(_text_part(block, here))
    message["content"] = parts or None
    if thoughts:
        message["reasoning_content"] = "\n".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    return message


def call_names(blocks: Sequence[Block]) -> dict[str, str]:
    """Names of the tools that were called, by the call's id."""
    return {str(block.get("id")): str(block.get("name")) for block in blocks if block.get("type") == "tool_use"}


def _text_part(block: Block, where: str) -> dict[str, Any]:
    kind = block.get("type")
    if kind == "document" and isinstance(source := block.get("source"), dict) and source.get("type") == "text":
        return {"type": "text", "text": string_field(source, "data", f"{where}.source"), **_control(block)}
    if kind == "image":
        return {"type": kind, **_control(block)}
    if kind != "text":
        problem = f"this model reads text only, and this is a block of type {str(kind)[:40]!r}"
        raise bad(where, problem, "send what it says as text, or leave it out")
    return {"type": "text", "text": string_field(block, "text", where), **_control(block)}


def _tool_message(block: Block, where: str, names: Mapping[str, str]) -> OpenAIMessage:
    call_id, content = string_field(block, "tool_use_id", where), block.get("content")
    parts = [] if content is None else text_parts(blocks_of(content, f"{where}.content"), f"{where}.content")
    message = {"role": "tool", "tool_call_id": call_id, "content": parts or "", **_control(block)}
    return message | ({"name": names[call_id]} if call_id in names else {})


def _call(block: Block, where: str) -> dict[str, Any]:
    arguments = block.get("input")
    if not isinstance(arguments, dict):
        raise bad(f"{where}.input", "must be an object")
    spelled = to_json(arguments, inf_nan_mode="null").decode()  # JSON's own numbers alone
    function = {"name": string_field(block, "name", where), "arguments": spelled}
    return {"id": string_field(block, "id", where), "type": "function", "function": function}


def _control(block: Block) -> dict[str, Any]:
    return {CACHE_CONTROL: block[CACHE_CONTROL]} if block.get(CACHE_CONTROL) else {}
