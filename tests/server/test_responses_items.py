"""Input items: as they are kept, and as the messages that a template reads."""

from __future__ import annotations

from typing import Any

import pytest
from fake_engine import FakeEngine, serving, state_of
from test_responses import TEMPLATE
from test_responses_stored import client_of

from milepost.errors import RequestError
from milepost.server.parsers.events import CallEnd, CallStart, Content
from milepost.server.responses_items import add, messages_of, read_items
from milepost.server.responses_output import Output


def read(sent: Any) -> list[dict[str, Any]]:
    return read_items(sent, {"msg_known": {"id": "msg_known", "type": "message"}}.get)


def test_each_item_gets_what_it_lacks() -> None:
    (text,) = read("q")
    assert text.pop("id").startswith("msg_")
    assert text == {
        "type": "message",
        "status": "completed",
        "role": "user",
        "content": [{"type": "input_text", "text": "q"}],
    }
    said, thought, refused, known = read(
        [
            {"id": "msg_mine", "role": "assistant", "content": "a", "phase": "commentary"},
            {"id": "rs_mine", "type": "reasoning", "summary": [{"type": "summary_text", "text": "s"}]},
            {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
            {"id": "msg_known"},
        ]
    )
    assert (said["id"], said["phase"]) == ("msg_mine", "commentary")
    assert said["content"] == [{"type": "output_text", "text": "a", "annotations": [], "logprobs": []}]
    assert (thought["id"], thought["summary"]) == ("rs_mine", [{"type": "summary_text", "text": "s"}])
    assert refused["content"] == [{"type": "refusal", "refusal": "no"}]
    assert known == {"id": "msg_known", "type": "message"}
    with pytest.raises(RequestError, match="msg_other") as found:
        read([{"type": "item_reference", "id": "msg_other"}])
    assert found.value.status == 404


def test_what_an_assistant_did_in_a_row_is_one_message() -> None:
    def call(name: str) -> dict[str, Any]:
        return {"type": "function_call", "call_id": f"c_{name}", "name": name, "arguments": "{}"}

    items = [
        {"role": "developer", "content": "d"},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": text} for text in "rs"]},
        {"role": "assistant", "content": "one"},
        {"role": "assistant", "content": "two"},
        call("f"),
        call("g"),
        {"type": "function_call_output", "call_id": "c_g", "output": "out"},
        {"type": "function_call_output", "call_id": "c_x", "output": [{"type": "input_text", "text": "out"}]},
        {"role": "assistant", "content": "three"},
    ]
    calls = [
        {"id": f"c_{name}", "type": "function", "function": {"name": name, "arguments": "{}"}} for name in ("f", "g")
    ]
    assert messages_of(read(items)) == [
        {"role": "developer", "content": [{"type": "text", "text": "d"}]},
        {
            "role": "assistant",
            "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}],
            "reasoning_content": "r\ns",
            "tool_calls": calls,
        },
        {"role": "tool", "tool_call_id": "c_g", "content": "out", "name": "g"},
        {"role": "tool", "tool_call_id": "c_x", "content": [{"type": "text", "text": "out"}]},
        {"role": "assistant", "content": [{"type": "text", "text": "three"}]},
    ]


def test_lists_of_a_message_grow_in_place() -> None:
    """A body has room for a million items in a row: copied for each, their lists would take days."""
    thought = {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "r"}]}
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    items = read([thought, {"role": "assistant", "content": "a"}, call] * 2)
    message: dict[str, Any] = {"role": "assistant", "content": None}
    for item in items[:3]:
        add(message, item)
    fields = ("content", "tool_calls", "reasoning_content")
    lists = [message[name] for name in fields]
    for item in items[3:]:
        add(message, item)
    assert all(message[name] is grown and len(grown) == 2 for name, grown in zip(fields, lists, strict=True))


def test_instructions_and_first_messages_are_one() -> None:
    engine = FakeEngine(template=TEMPLATE)
    first: list[Any] = [{"role": "developer", "content": "d"}, {"role": "system", "content": "s"}]
    then: list[Any] = [{"role": "user", "content": "q"}, {"role": "system", "content": "later"}]
    with serving(state_of(engine)) as url, client_of(url, "none") as client:
        client.responses.create(model="", instructions="i", input=[*first, *then])
        assert engine.asked[-1][0]["prompt"] == "<system>i\nd\ns<user>q<system>later<assistant>"
        client.responses.create(model="", input=[first[0], *then])
        assert engine.asked[-1][0]["prompt"] == "<developer>d<user>q<system>later<assistant>", "alone it stays as it is"


def test_space_waits_for_the_word_after_it() -> None:
    output = Output(seals=False)
    told = list(output.take([Content("\n"), CallStart(0, "c", "f"), CallEnd(0), Content("\n"), Content("a")], ()))
    assert [item["type"] for item in output.items] == ["function_call", "message"]
    assert [fields["delta"] for kind, fields in told if kind == "response.output_text.delta"] == ["\na"]
    list(output.end("completed", answers=True))
    assert output.items[-1]["content"][0]["text"] == "\na"
