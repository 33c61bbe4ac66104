"""OpenAI's `tool_choice`: which of the offered tools may be called, and whether one must be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from milepost.errors import RequestError
from milepost.server.parsers.calls import Tools
from milepost.server.prompts import known_tools
from milepost.server.schemas import ChatRequest

FORMS = 'tool_choice is "none", "auto", "required", a function by its name, or allowed_tools'


@dataclass(frozen=True)
class ToolChoice:
    """`tools`: what may be called, JSON schemas of the arguments by name; `one`: no more than one call."""

    tools: Tools
    forced: bool = False
    one: bool = False


def read_tool_choice(body: ChatRequest) -> ToolChoice:
    """Raises `RequestError` for a choice that nothing can be chosen by."""
    offered = {tool["function"]["name"]: _schema(tool["function"]) for tool in known_tools(body.tools)}
    choice = body.tool_choice
    if choice in (None, "auto"):
        return ToolChoice(offered)
    if choice == "none":
        return ToolChoice({})
    if choice == "required":
        return ToolChoice(_some(offered), forced=True)
    if isinstance(choice, Mapping) and choice.get("type") == "function":
        return ToolChoice(_picked(offered, [choice]), forced=True, one=True)
    if isinstance(choice, Mapping) and choice.get("type") == "allowed_tools":
        return _allowed(offered, choice.get("allowed_tools"))
    raise _bad(FORMS)


def _allowed(offered: Tools, allowed: Any) -> ToolChoice:
    """The client's way to keep its list of tools, and with it the prompt's prefix, and still offer fewer."""
    tools = allowed.get("tools") if isinstance(allowed, Mapping) else None
    mode = allowed.get("mode") if isinstance(allowed, Mapping) else None
    if not isinstance(tools, list) or mode not in ("auto", "required"):
        raise _bad('allowed_tools has a mode, "auto" or "required", and tools')
    picked = _picked(offered, tools)
    return ToolChoice(_some(picked) if mode == "required" else picked, forced=mode == "required")


def _picked(offered: Tools, choices: Sequence[Any]) -> Tools:
    functions = [choice.get("function") if isinstance(choice, Mapping) else None for choice in choices]
    names = [function.get("name") if isinstance(function, Mapping) else None for function in functions]
    unknown = [name for name in names if not isinstance(name, str) or name not in offered]
    if unknown:
        raise _bad(f"tool_choice names {str(unknown[0])[:64]!r}, which is not among the tools")
    return {str(name): offered[str(name)] for name in names}


def _some(tools: Tools) -> Tools:
    if not tools:
        raise _bad("a tool must be called, and there is none that this server can call")
    return tools


def _schema(function: Mapping[str, Any]) -> Mapping[str, Any]:
    schema = function.get("parameters")
    return schema if isinstance(schema, Mapping) else {}


def _bad(message: str) -> RequestError:
    return RequestError(message, "change tool_choice", param="tool_choice")
