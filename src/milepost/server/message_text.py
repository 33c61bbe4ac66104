"""The text of messages; and their calls as text, for chat templates that would leave them out."""

from __future__ import annotations

from typing import Any

from pydantic_core import from_json

from milepost.server.dialect import Dialect
from milepost.server.parsers.family import Call


def content_text(content: Any) -> str:
    """The text of content: text, or parts."""
    if isinstance(content, list):
        return "\n".join(part if isinstance(part, str) else part.get("text") or "" for part in content)
    return content or ""


def with_calls_spelled(message: dict[str, Any], dialect: Dialect) -> dict[str, Any]:
    """An assistant's message with its calls in its content, as the model would have written them. One whose calls are
    of another form is left as it is: reading it brings the error."""
    calls = message.get("tool_calls")
    if message["role"] != "assistant" or not isinstance(calls, list) or not calls:
        return message
    read = [call for call in map(_call, calls) if call is not None]
    if len(read) < len(calls):
        return message
    text, first = dialect.family.spell(dialect.form, read), dialect.family.calls_first
    rest = {name: value for name, value in message.items() if name != "tool_calls"}
    return rest | {"content": _joined(message.get("content"), text, first)}


def _joined(content: Any, text: str, first: bool) -> Any:
    """Parts stay parts: they may mark places in the cache."""
    if isinstance(content, list):
        part = {"type": "text", "text": text}
        return [part, *content] if first else [*content, part]
    if not isinstance(content, str) or not content:
        return text
    return text + content if first else f"{content}\n{text}"


def _call(call: Any) -> Call | None:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        return None
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = from_json(arguments or "{}")
        except ValueError:
            return None
    return (function["name"], arguments) if isinstance(arguments, dict) else None
