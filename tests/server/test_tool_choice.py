"""Which tools may be called, and whether one must be."""

from __future__ import annotations

import pytest

from milepost.errors import RequestError
from milepost.server.schemas import ChatRequest
from milepost.server.tool_choice import ToolChoice, read_tool_choice

SCHEMA = {"type": "object"}
TOOLS = [
    {"type": "function", "function": {"name": "a", "parameters": SCHEMA}},
    {"type": "web_search"},
    {"type": "function", "function": {"name": "b", "parameters": None}},
]
A = {"type": "function", "function": {"name": "a"}}


def choice_of(choice: object, tools: object = TOOLS) -> ToolChoice:
    return read_tool_choice(
        ChatRequest.model_validate({"model": "", "messages": [], "tools": tools, "tool_choice": choice})
    )


def allowed(mode: str, *tools: object) -> dict[str, object]:
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": list(tools)}}


@pytest.mark.parametrize(
    ("choice", "told"),
    [
        (None, ToolChoice({"a": SCHEMA, "b": {}})),
        ("auto", ToolChoice({"a": SCHEMA, "b": {}})),
        ("none", ToolChoice({})),
        ("required", ToolChoice({"a": SCHEMA, "b": {}}, forced=True)),
        (A, ToolChoice({"a": SCHEMA}, forced=True, one=True)),
        (allowed("auto", A), ToolChoice({"a": SCHEMA})),
        (allowed("auto"), ToolChoice({})),
        (allowed("required", A), ToolChoice({"a": SCHEMA}, forced=True)),
    ],
)
def test_choice(choice: object, told: ToolChoice):
    assert choice_of(choice) == told


@pytest.mark.parametrize(
    ("choice", "tools"),
    [
        ("any", TOOLS),
        ({"type": "custom"}, TOOLS),
        ({"type": "function", "function": {"name": "c"}}, TOOLS),
        ({"type": "function", "function": {"name": ["a"]}}, TOOLS),
        ({"type": "function", "name": "a"}, TOOLS),
        (allowed("required"), TOOLS),
        (allowed("perhaps", A), TOOLS),
        ({"type": "allowed_tools"}, TOOLS),
        (allowed("auto", "a"), TOOLS),
        ("required", None),
        ("required", [{"type": "web_search"}]),
    ],
)
def test_refused(choice: object, tools: object):
    with pytest.raises(RequestError) as caught:
        choice_of(choice, tools)
    assert caught.value.param == "tool_choice"
