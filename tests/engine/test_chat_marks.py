"""Where messages begin and end in what templates of all styles make of them."""

from __future__ import annotations

from datetime import datetime
from itertools import pairwise
from typing import Any

import chat_templates
import pytest
import toy_tokenizers
from test_chat import CONVERSATIONS, SPECIAL, WAYS, WEATHER

from milepost.engine.chat import ChatTemplate
from milepost.engine.chat_marks import BOUNDARY, BREAKPOINT, marked
from milepost.engine.places import NOWHERE, Places
from milepost.errors import RequestError

EPHEMERAL = {"cache_control": {"type": "ephemeral"}}


def says(role: str, content: Any, **fields: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **fields}


CHAT = [
    says("system", "Be brief."),
    says("user", "  Hi 😀 there\n"),
    says("assistant", "Hello"),
    says("user", "Bye"),
]


def part(text: str, **fields: Any) -> dict[str, Any]:
    return {"type": "text", "text": text, **fields}


def shown(template: ChatTemplate, messages: list[dict[str, Any]], **options: Any) -> str:
    """The rendered text, `|` where a message begins or ends and `#` where a client's breakpoint is."""
    text = template.render(messages, **options)
    places = template.places(text, messages, **options)
    marks = sorted([*((place, "|") for place in places.boundaries), *((place, "#") for place in places.breakpoints)])
    for place, mark in reversed(marks):
        text = text[:place] + mark + text[place:]
    return text


def test_a_boundary_on_each_side_of_every_message() -> None:
    assert shown(ChatTemplate(chat_templates.CHATML), CHAT) == (
        "<|im_start|>system\nBe brief.|<|im_end|>\n"
        "<|im_start|>user\n  |Hi 😀 there|\n<|im_end|>\n"
        "<|im_start|>assistant\n|Hello|<|im_end|>\n"
        "<|im_start|>user\n|Bye|<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


@pytest.mark.parametrize("name", chat_templates.TEMPLATES)
def test_every_style_of_template_shows_all_boundaries(name: str) -> None:
    """Of a template that trims or not, with a default system message or tools; roles that it refuses are left out."""
    template = ChatTemplate(chat_templates.TEMPLATES[name], SPECIAL)
    messages = CHAT
    try:
        text = template.render(messages, tools=[WEATHER])
    except RequestError:
        text = template.render(messages := CHAT[1:], tools=[WEATHER])
    places = template.places(text, messages, tools=[WEATHER]).boundaries
    between = [text[start:end] for start, end in pairwise(places)]
    for said in ("Hi 😀 there", "Hello", "Bye"):
        assert said in between


@pytest.mark.parametrize("name", chat_templates.TEMPLATES)
def test_the_prompt_is_the_same_whatever_is_marked(name: str) -> None:
    """All conversations, in all ways; where something is found it is inside the text."""
    template = ChatTemplate(chat_templates.TEMPLATES[name], SPECIAL)
    num_found = 0
    for messages in CONVERSATIONS.values():
        for way in WAYS:
            try:
                text = template.render(messages, **way)
            except RequestError:
                continue
            controlled = [message | EPHEMERAL for message in messages]
            assert template.render(controlled, **way) == text
            places = template.places(text, controlled, **way)
            assert all(0 <= place <= len(text) for place in (*places.boundaries, *places.breakpoints))
            assert list(places.boundaries) == sorted(set(places.boundaries))
            num_found += bool(places)
    assert num_found >= 10


def test_smollm2s_own_template() -> None:
    source = toy_tokenizers.smollm2_source()
    text = shown(ChatTemplate(source.chat_template, source.special_tokens), CHAT[1:3])
    assert "<|im_start|>user\n  |Hi 😀 there|\n<|im_end|>\n<|im_start|>assistant\n|Hello|" in text


def test_breakpoints_of_messages_and_of_parts() -> None:
    template = ChatTemplate(chat_templates.CHATML)
    messages = [
        says("system", [part("a"), part("b", **EPHEMERAL), part("c")]),
        says("user", "d", **EPHEMERAL),
        says("assistant", "e"),
        says("user", ["f", part("g", **EPHEMERAL)]),
    ]
    assert shown(template, messages, add_generation_prompt=False) == (
        "<|im_start|>system\na\nb#\nc|<|im_end|>\n<|im_start|>user\n|d#<|im_end|>\n"
        "<|im_start|>assistant\n|e|<|im_end|>\n<|im_start|>user\n|f\ng#<|im_end|>\n"
    )


def test_a_breakpoint_without_text_is_where_the_next_message_begins() -> None:
    call = says("assistant", None, tool_calls=[], **EPHEMERAL)
    messages = [says("user", "a"), call, says("tool", "b"), says("user", [part(" ", **EPHEMERAL)]), says("user", "c")]
    text = shown(ChatTemplate(chat_templates.CHATML), messages)
    assert "tool\n#b|<|im_end|>" in text
    assert "user\n#c|<|im_end|>" in text


@pytest.mark.parametrize("place", ["tool", "function"])
def test_a_tools_breakpoint_is_where_the_conversation_begins(place: str) -> None:
    function: dict[str, Any] = WEATHER["function"]  # type: ignore[assignment]
    tool = {**WEATHER, **EPHEMERAL} if place == "tool" else {**WEATHER, "function": {**function, **EPHEMERAL}}
    template = ChatTemplate(chat_templates.THINKING)
    assert template.render(CHAT, tools=[WEATHER, tool]) == template.render(CHAT, tools=[WEATHER, WEATHER])
    text = shown(template, CHAT, tools=[WEATHER, tool])
    assert text.count("#") == 1 + "# Tools".count("#")
    assert "</tools><|im_end|>\n<|im_start|>user\n  #Hi" in text


@pytest.mark.parametrize("control", [None, {}, "ephemeral", {"type": "other"}, ["ephemeral"]])
def test_what_is_no_breakpoint_is_none_and_no_error(control: Any) -> None:
    messages = [says("user", [part("a", cache_control=control)], cache_control=control)]
    template = ChatTemplate(chat_templates.CHATML)
    assert template.places(template.render(messages), messages).breakpoints == ()


def test_templates_that_look_into_texts_show_nothing_and_fail_nothing() -> None:
    sources = [
        "{% for m in messages %}{{ m.content | length }}{% endfor %}",
        "{% for m in messages %}{{ m.content[-1:] }}{% endfor %}",
        "{% for m in messages %}{{ raise_exception('no') if m.content.endswith('\\U0010f6e0') }}{{ m.content }}"
        "{% endfor %}",
    ]
    for source in sources:
        template = ChatTemplate(source)
        messages = [says("user", "abc"), says("user", "def")]
        assert template.places(template.render(messages), messages) == NOWHERE


def test_texts_that_hold_the_marks_themselves_show_nothing() -> None:
    template = ChatTemplate(chat_templates.CHATML)
    for mark in (BOUNDARY, BREAKPOINT):
        messages = [says("user", f"a{mark}b"), says("assistant", "c")]
        assert template.places(template.render(messages), messages) == NOWHERE


def test_a_clock_that_goes_on_between_the_two_renderings_shows_nothing() -> None:
    moments = iter("abcdefgh")

    class Clock:
        def strftime(self, form: str) -> str:
            return next(moments)

    template = ChatTemplate("{{ strftime_now('') }}{{ messages[0].content }}", now=Clock)  # type: ignore[arg-type]
    messages = [says("user", "a")]
    template.render(messages)  # finds out what the template reads
    moments = iter("ab")
    assert template.places(template.render(messages), messages) == NOWHERE


def test_a_template_that_shows_only_some_messages() -> None:
    template = ChatTemplate("{{ messages[-1].content }}")
    assert template.places("Bye", CHAT) == Places((0, 3))


def test_long_chats_have_their_first_and_last_boundaries_and_cost_two_renderings() -> None:
    moments = []

    def now() -> datetime:
        moments.append(1)
        return datetime(2031, 7, 5)

    template = ChatTemplate("{{ strftime_now('%Y') }}" + chat_templates.CHATML, now=now)
    template.render(CHAT)  # finds out what the template reads
    moments.clear()
    messages = [says("system", "s"), *(says("user", f"message {i}") for i in range(3000))]
    text = template.render(messages)
    places = template.places(text, messages).boundaries
    assert len(moments) == 2
    assert len(places) == 16
    assert text[: places[1]].endswith("<|im_start|>user\n")
    assert text[places[2] :].count("message 29") == 7


def test_marking_leaves_the_messages_as_they_are() -> None:
    messages = [says("user", [part("a")]), says("assistant", None), says("tool", "")]
    before = repr(messages)
    copies = marked(messages, None)
    assert repr(messages) == before
    assert copies[0]["content"] == [part(f"{BOUNDARY}a{BOUNDARY}")]
    assert copies[1:] == messages[1:]
