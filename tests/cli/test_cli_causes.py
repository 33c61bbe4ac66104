"""The usual causes of a miss, each found in the prompts that have it and in no others."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from milepost.cli.causes import causes
from milepost.cli.prompt_files import FilePrompt
from milepost.engine.chat import ChatTemplate

PLAIN = ChatTemplate(
    "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}<{{ m.role }}>"
    "{% if m.reasoning_content %}[{{ m.reasoning_content }}]{% endif %}{{ m.content }}"
    "{% for call in m.tool_calls %}{{ call.function.arguments | tojson }}{% endfor %}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
FORGETFUL = ChatTemplate(
    "{% for m in messages %}<{{ m.role }}>"
    "{% if m.reasoning_content and loop.last %}[{{ m.reasoning_content }}]{% endif %}"
    "{{ m.content }}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
OPENING = ChatTemplate(
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant><think>{% endif %}"
)
SYSTEM = "You help people of all ages with their homework, and you are patient with them all."
CHAT = [
    {"role": "system", "content": SYSTEM},
    {"role": "user", "content": "What is the capital of France, and why is it there of all places?"},
    {"role": "assistant", "content": "Paris.", "reasoning_content": "An easy one."},
    {"role": "user", "content": "And of Spain?"},
]
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}}
    for name in ("weather", "news")
]


def chat(
    messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None = None, template: ChatTemplate = PLAIN
) -> FilePrompt:
    text = template.render(messages, tools=tools)
    return FilePrompt("x", text, list(text.encode()), messages, tools, {"add_generation_prompt": True})


def words(text: str) -> FilePrompt:
    return FilePrompt("x", text, list(text.encode()))


def edited(place: int, **fields: Any) -> list[dict[str, Any]]:
    messages = copy.deepcopy(CHAT)
    messages[place] |= fields
    return messages


def cause(a: FilePrompt, b: FilePrompt, template: ChatTemplate | None = PLAIN) -> str:
    return " / ".join(causes(a, b, template))


@pytest.mark.parametrize(
    ("one", "other", "name"),
    [
        ("2026-11-30", "2026-12-01", "a date or a time"),
        ("2026-11-30T10:15:00", "2026-11-30T10:15:01", "a date or a time"),
        ("10:15", "10:16", "a date or a time"),
        ("Monday", "Tuesday", "a date or a time"),
        ("March 3, 2026", "March 4, 2026", "a date or a time"),
        ("3 March 2026", "4 April 2026", "a date or a time"),
        ("0b9f7a52-64d5-4c1c-9b0a-7f0f0f0f0f0f", "0b9f7a52-64d5-4c1c-9b0a-7f0f0f0f0f1f", "an id"),
        ("session_8fj3k29d", "session_9aj3k29d", "an id"),
        ("deadbeef01", "deadbeef02", "an id"),
        ("4711", "4712", "a number"),
    ],
)
def test_what_changes_with_each_request(one: str, other: str, name: str) -> None:
    a, b = (chat(edited(0, content=f"It is {moving} now. {SYSTEM}")) for moving in (one, other))
    assert cause(a, b) == f"{name} differs there: what changes with each request belongs behind what stays the same"
    assert cause(words(a.text), words(b.text), None).startswith(f"{name} differs")
    last = [chat(edited(3, content=moving)) for moving in (one, other)]
    assert cause(*last) == "", "in the last message it does no harm"


def test_words_that_differ_are_no_such_thing() -> None:
    assert cause(words("It was red. " + SYSTEM), words("It was blue. " + SYSTEM)) == ""
    assert cause(words(SYSTEM), words(SYSTEM)) == ""


def test_tools() -> None:
    keys = [{"function": tool["function"], "type": "function"} for tool in TOOLS]
    assert cause(chat(CHAT, TOOLS), chat(CHAT, TOOLS[::-1])).startswith("the tools are the same in another order")
    assert cause(chat(CHAT, TOOLS), chat(CHAT, keys)).startswith("the tools are the same with their keys")
    assert cause(chat(CHAT, TOOLS), chat(CHAT, TOOLS[:1])).startswith("the tools differ")
    assert cause(chat(CHAT), chat(CHAT, TOOLS)).startswith("only B has tools")
    assert cause(chat(CHAT, TOOLS), chat(edited(3, content="Why?"), TOOLS)) == ""


def test_keys_of_a_message() -> None:
    def calling(arguments: dict[str, Any]) -> FilePrompt:
        call = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": arguments}}
        return chat([*CHAT, {"role": "assistant", "content": "", "tool_calls": [call]}])

    told = cause(calling({"city": "Paris", "day": 1}), calling({"day": 1, "city": "Paris"}))
    assert told.startswith("message 5 is the same with its keys in another order")


def test_a_template_that_drops_reasoning() -> None:
    a, b = chat(CHAT[:3], None, FORGETFUL), chat(CHAT, None, FORGETFUL)
    assert cause(a, b, FORGETFUL).startswith("the template drops the reasoning of former turns once others follow")
    assert cause(chat(CHAT[:3]), chat(CHAT), PLAIN).startswith("the template opens an answer"), "nobody asked it to"
    assert cause(chat(CHAT[:2]), chat(CHAT)) == ""


def test_a_template_that_opens_answers_otherwise() -> None:
    told = cause(chat(CHAT[:2], None, OPENING), chat(CHAT, None, OPENING), OPENING)
    assert told.startswith("the template opens an answer otherwise")


@pytest.mark.parametrize("stripped", [{"reasoning_content": None}, {"reasoning_content": ""}])
def test_a_client_that_strips_reasoning(stripped: dict[str, Any]) -> None:
    assert cause(chat(CHAT), chat(edited(2, **stripped))).startswith("message 3 of B lacks the reasoning")
    thought = edited(2, reasoning_content=None, content="<think>An easy one.</think>\n\nParis.")
    plain = edited(2, reasoning_content=None)
    assert cause(chat(thought), chat(plain)).startswith("message 3 of B lacks the reasoning")
    assert cause(chat(plain), chat(thought)).startswith("message 3 of A lacks the reasoning")


def test_white_space() -> None:
    assert cause(words("Once upon a time \n"), words("Once upon a time, there")).startswith("A ends in white space")
    spaced = chat(edited(1, content=CHAT[1]["content"] + " "))
    assert cause(spaced, chat(CHAT)).startswith("only white space differs there")
    merged = FilePrompt("a", "It is ", [1, 2]), FilePrompt("b", "It is Paris", [1, 3])
    assert cause(*merged).startswith("A ends in white space, which becomes a token together")
    merged = FilePrompt("a", "It is Par", [1, 2]), FilePrompt("b", "It is Paris", [1, 3])
    assert cause(*merged).startswith("A ends within a word")


def test_system_messages() -> None:
    assert cause(chat(CHAT), chat(edited(0, content="Be brief. " + SYSTEM))).startswith("the system messages differ")
    assert cause(chat(CHAT), chat(CHAT[1:])).startswith("only A has a system message")
    assert cause(chat(CHAT[1:]), chat(CHAT)).startswith("only B has a system message")
