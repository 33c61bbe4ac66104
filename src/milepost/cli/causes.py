"""The usual causes why two prompts that should share a beginning do not, each told with what to do about it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from milepost.cli.comparison import common_text
from milepost.cli.prompt_files import FilePrompt

if TYPE_CHECKING:
    from milepost.engine.chat import ChatTemplate

MONTH = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*\.?"
MOVING = {
    "a date or a time": re.compile(
        r"\d{4}-\d{2}-\d{2}(?:[T ]\d{2}:\d{2}(?::\d{2}(?:\.\d+)?)?)?|\d{1,2}[:.]\d{2}(?:[:.]\d{2,4})?"
        rf"|{MONTH} \d{{1,2}}(?:, \d{{4}})?|\d{{1,2}}\.? {MONTH}(?: \d{{4}})?"
        r"|\b(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day"
    ),
    "an id": re.compile(
        r"\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b"
        r"|\b(?=[0-9a-fA-F-]*\d)[0-9a-fA-F]{8,}\b|\b\w+[_-](?=\w*\d)\w{6,}\b"
    ),
    "a number": re.compile(r"\d{3,}"),
}
"""What often changes from request to request."""

REACH = 80
"""Characters around the parting that are searched for such a thing."""

REASONING = ("reasoning_content", "reasoning", "thinking")
THOUGHT = re.compile(r"<think>.*?</think>\s*", re.DOTALL)

Cause = Callable[[FilePrompt, FilePrompt, int], str | None]


def causes(a: FilePrompt, b: FilePrompt, template: ChatTemplate | None) -> list[str]:
    """Of `b`, read after `a`: those that seem to hold, the likeliest first."""
    place = common_text(a.text, b.text)
    return list(_found(a, b, place, template))


def _found(a: FilePrompt, b: FilePrompt, place: int, template: ChatTemplate | None) -> Iterator[str]:
    if a.ids == b.ids:
        return
    tools = _tools(a, b)
    if tools:
        yield tools
    kept = _template_drops(a, b, template) if template is not None else None
    told = (
        kept or _stripped_reasoning(a, b) or _reordered_keys(a, b) or _moving(a, b, place) or _white_space(a, b, place)
    )
    if told:
        yield told
    elif not tools:
        system = _system(a, b)
        if system:
            yield system
    if not told and place == len(a.text) and b.ids[: len(a.ids)] != a.ids:
        ending = "ends in white space, which" if a.text[-1:].isspace() else "ends within a word, whose start"
        yield f"A {ending} becomes a token together with what follows: end texts where a word ends"


def _moving(a: FilePrompt, b: FilePrompt, place: int) -> str | None:
    """Something that changes with time, and is not what was asked last."""
    if place > len(b.text) * 3 // 4:
        return None
    for name, pattern in MOVING.items():
        if _spans(pattern, a.text, place) and _spans(pattern, b.text, place):
            return f"{name} differs there: what changes with each request belongs behind what stays the same"
    return None


def _spans(pattern: re.Pattern[str], text: str, place: int) -> bool:
    start = max(0, place - REACH)
    found = pattern.finditer(text[start : place + REACH])
    return any(start + match.start() <= place <= start + match.end() for match in found)


def _tools(a: FilePrompt, b: FilePrompt) -> str | None:
    if a.tools == b.tools and _json(a.tools) == _json(b.tools):
        return None
    if not a.tools or not b.tools:
        return f"only {'A' if a.tools else 'B'} has tools, and the template writes them near the start"
    one, other = [_canonical(tool) for tool in a.tools], [_canonical(tool) for tool in b.tools]
    if one == other:
        return "the tools are the same with their keys in another order: send them always in the same one"
    if sorted(one) == sorted(other):
        return "the tools are the same in another order: send them always in the same one"
    return "the tools differ, and the template writes them near the start: add new ones at the end of the list"


def _reordered_keys(a: FilePrompt, b: FilePrompt) -> str | None:
    for i, (one, other) in enumerate(zip(a.messages or (), b.messages or (), strict=False)):
        if _json(one) != _json(other):
            same = _canonical(one) == _canonical(other) and _json(one) != _json(other)
            return f"message {i + 1} is the same with its keys in another order: send it as before" if same else None
    return None


def _template_drops(a: FilePrompt, b: FilePrompt, template: ChatTemplate) -> str | None:
    """B goes on from A, message by message, and yet the text of A does not come back in that of B."""
    if a.messages is None or b.messages is None or _tools(a, b):
        return None
    count = len(a.messages)
    if len(b.messages) <= count or [*map(_canonical, b.messages[:count])] != [*map(_canonical, a.messages)]:
        return None
    settings = {**a.settings, "add_generation_prompt": False, "continue_final_message": False}
    history = template.render(a.messages, tools=a.tools, **settings)
    if not b.text.startswith(history):
        what = (
            "drops the reasoning of former turns" if any(map(_reasons, a.messages)) else "writes former turns otherwise"
        )
        return (
            f"the template {what} once others follow: see whether it has a setting to keep them (chat_template_kwargs)"
        )
    if not b.text.startswith(a.text):
        return (
            "the template opens an answer otherwise than it writes a former one: a few tokens are read again each turn"
        )
    return None


def _stripped_reasoning(a: FilePrompt, b: FilePrompt) -> str | None:
    for i, (one, other) in enumerate(zip(a.messages or (), b.messages or (), strict=False)):
        if _canonical(one) == _canonical(other):
            continue
        if _reasons(one) != _reasons(other) and _without_reasoning(one) == _without_reasoning(other):
            lacks = "B" if _reasons(one) else "A"
            return f"message {i + 1} of {lacks} lacks the reasoning that the other has: send it back, or never"
        return None
    return None


def _white_space(a: FilePrompt, b: FilePrompt, place: int) -> str | None:
    one, other = a.text[place:], b.text[place:]
    if one and not one.strip():
        return "A ends in white space that B does not go on with: leave out spaces and line breaks at the end"
    left, right = one.lstrip()[:REACH], other.lstrip()[:REACH]
    if (
        (one[:1].isspace() or other[:1].isspace())
        and left
        and right
        and (left.startswith(right) or right.startswith(left))
    ):
        return "only white space differs there: leave out spaces and line breaks at the end of messages"
    return None


def _system(a: FilePrompt, b: FilePrompt) -> str | None:
    if not a.messages or not b.messages:
        return None
    one, other = (
        [m for m in prompt.messages or () if m.get("role") in ("system", "developer")][:1] for prompt in (a, b)
    )
    if bool(one) != bool(other):
        return f"only {'A' if one else 'B'} has a system message"
    if one and _canonical(one[0]) != _canonical(other[0]):
        return (
            "the system messages differ: what differs between users belongs at their end, or in the first user message"
        )
    return None


def _reasons(message: dict[str, Any]) -> bool:
    content = message.get("content")
    return any(message.get(name) for name in REASONING) or (isinstance(content, str) and "<think>" in content)


def _without_reasoning(message: dict[str, Any]) -> str:
    rest = {name: value for name, value in message.items() if name not in REASONING}
    if isinstance(rest.get("content"), str):
        rest["content"] = THOUGHT.sub("", rest["content"]).strip()
    return _canonical(rest)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _canonical(value: Any) -> str:
    """JSON with sorted keys."""
    return json.dumps(value, ensure_ascii=False, sort_keys=True)
