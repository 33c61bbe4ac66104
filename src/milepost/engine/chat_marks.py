"""Where messages of a rendered chat begin and end: it is rendered once more with marks in the messages' texts.

    messages   system: Be brief.     user:  Hi there_
    marked     system: Be brief.^    user:  ^Hi there^_
    rendered   <s>Be brief.^</s><u>^Hi there^</u>

If the second rendering without its marks is the first, they stand where messages begin and end. If it is not, because
the template looks into the texts or shows them changed, nothing is known. Marks stand next to visible characters, so
that templates may trim; an empty message gets none, so that it stays empty.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from milepost.engine.chat_messages import CACHE_BREAKPOINT, CACHE_CONTROL, TEXT_PARTS
from milepost.engine.places import NOWHERE, Places, kept

BOUNDARY, BREAKPOINT = "\U0010f6e0", "\U0010f6e1"
"""Characters for private use, which no filter of a template changes."""

_MARK = re.compile(f"[{BOUNDARY}{BREAKPOINT}]")


def marked(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None) -> list[dict[str, Any]]:
    """Copies of `messages`, which a template has accepted, with marks where their texts begin and end.

    Where a message that has no text is a breakpoint, the next begins. A tool's breakpoint is where the first message
    after the system message begins: templates show tools before it.
    """
    marker = _Marker()
    in_tools = any(breaks(tool) or breaks(tool.get("function")) for tool in tools or ())
    roles = [message["role"] for message in messages]
    num_system = next((i for i, role in enumerate(roles) if role not in ("system", "developer")), len(roles))
    copies = []
    for i, message in enumerate(messages):
        marker.waiting |= in_tools and i == num_system
        opens = "" if i == 0 and num_system else BOUNDARY  # nothing that could be shared comes before a system message
        copies.append({**message, **marker.content(message, opens)})
    return copies


def found(marked_text: str, text: str) -> Places:
    """Where in `text` its second rendering has the marks, in characters; none if that is not of the same text."""
    if _MARK.search(text) or _MARK.sub("", marked_text) != text:
        return NOWHERE
    places: dict[str, list[int]] = {BOUNDARY: [], BREAKPOINT: []}
    for num_before, mark in enumerate(_MARK.finditer(marked_text)):
        places[mark.group()].append(mark.start() - num_before)
    return Places(kept(places[BOUNDARY]), kept(places[BREAKPOINT]))


def breaks(thing: Any) -> bool:
    """Whether a message, a part of one or a tool carries Anthropic's breakpoint, or OpenAI's."""
    if not isinstance(thing, Mapping):
        return False
    control, mark = thing.get(CACHE_CONTROL), thing.get(CACHE_BREAKPOINT)
    is_anthropics = isinstance(control, Mapping) and control.get("type") == "ephemeral"
    return is_anthropics or (isinstance(mark, Mapping) and mark.get("mode") == "explicit")


class _Marker:
    """Goes through messages in their order. `waiting`: a breakpoint that stands where the next text begins."""

    def __init__(self) -> None:
        self.waiting = False

    def content(self, message: Mapping[str, Any], opens: str) -> dict[str, Any]:
        """A message's content with marks: `opens` before its first text, one after its last, and its breakpoints."""
        content = message.get("content")
        if not content:
            self.waiting |= breaks(message)
            return {}
        parts = list(content) if isinstance(content, list | tuple) else [content]
        visible = [i for i, part in enumerate(parts) if _text(part).strip()]
        for i, part in enumerate(parts):
            is_last, is_breakpoint = i in visible[-1:], breaks(part)
            is_breakpoint |= breaks(message) and (is_last or not visible)
            if i not in visible:
                self.waiting |= is_breakpoint
                continue
            before = BREAKPOINT if self.waiting else opens if i == visible[0] else ""
            after = BREAKPOINT if is_breakpoint else BOUNDARY if is_last else ""
            parts[i] = _with_text(part, _put(_text(part), before, after))
            self.waiting = False
        return {"content": parts if isinstance(content, list | tuple) else parts[0]}


def _put(text: str, before: str, after: str) -> str:
    """Marks around what is visible of a text."""
    body = text.strip()
    start = text.index(body)
    return text[:start] + before + body + after + text[start + len(body) :]


def _text(part: Any) -> str:
    return part if isinstance(part, str) else part[TEXT_PARTS[part["type"]]]


def _with_text(part: Any, text: str) -> Any:
    return text if isinstance(part, str) else {**part, TEXT_PARTS[part["type"]]: text}
