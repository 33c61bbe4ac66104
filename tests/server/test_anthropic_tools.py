"""Tool calls and thinking in Anthropic's answers, streamed or not; the model is a script."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import groupby
from typing import Any

import anthropic
import pytest
from fake_engine import TOOLS_AND_MESSAGES, FakeEngine, serving, state_of

TEMPLATE = (
    TOOLS_AND_MESSAGES
    + "{%- endfor %}{% if add_generation_prompt %}<assistant>{% if enable_thinking %}<think>\n{% endif %}{% endif %}"
)
TOOLS: list[Any] = [
    {
        "name": "weather",
        "description": "Of a city.",
        "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
    }
]
ASK: list[Any] = [{"role": "user", "content": "Weather?"}]
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
SCRIPT = f"<think>\nIn é?\n</think>\n\nI ask.\n\n{CALL}\n{CALL.replace('Paris', 'Rome')}"


@contextmanager
def talking(reply: str) -> Iterator[tuple[anthropic.Anthropic, FakeEngine]]:
    engine = FakeEngine(reply=reply, template=TEMPLATE)
    engine.max_model_len = 4096
    with serving(state_of(engine)) as url, anthropic.Anthropic(base_url=url, api_key="x", max_retries=0) as client:
        yield client, engine


@pytest.fixture(scope="module")
def claude() -> Iterator[anthropic.Anthropic]:
    with talking(SCRIPT) as (client, _):
        yield client


def ask(claude: anthropic.Anthropic, **fields: Any) -> anthropic.types.Message:
    """The same message, streamed and not."""
    fields = {"model": "fake", "max_tokens": 1000, "messages": ASK, "tools": TOOLS, **fields}
    whole = claude.messages.create(**fields)
    with claude.messages.stream(**fields) as stream:
        streamed = stream.get_final_message()
    kinds = [block.type for block in whole.content]
    assert [block.type for block in streamed.content] == kinds
    for one, other in zip(whole.content, streamed.content, strict=True):
        assert one.to_dict() | {"id": ""} == other.to_dict() | {"id": ""}
    assert (streamed.stop_reason, streamed.usage.output_tokens) == (whole.stop_reason, whole.usage.output_tokens)
    return whole


def test_answer(claude: anthropic.Anthropic) -> None:
    message = ask(claude)
    thinking, text, one, other = (block.to_dict() for block in message.content)
    signature = hashlib.sha256("In é?".encode()).hexdigest()
    assert thinking == {"type": "thinking", "thinking": "In é?", "signature": signature}
    assert text == {"type": "text", "text": "I ask.", "citations": None}
    assert (one["type"], one["name"], one["input"]) == ("tool_use", "weather", {"city": "Paris"})
    assert other["input"] == {"city": "Rome"}
    assert other["caller"] == {"type": "direct"}
    assert one["id"] != other["id"]
    assert message.stop_reason == "tool_use"


def test_life_cycle_of_the_blocks(claude: anthropic.Anthropic) -> None:
    with claude.messages.create(model="fake", max_tokens=1000, messages=ASK, tools=TOOLS, stream=True) as stream:
        start, *events, last, stop = stream
    assert (start.type, last.type, stop.type) == ("message_start", "message_delta", "message_stop")
    blocks = [list(group) for _, group in groupby(events, key=lambda event: event.index)]  # type: ignore[union-attr]
    assert [block[0].index for block in blocks] == [0, 1, 2, 3], "one at a time, in order"  # type: ignore[union-attr]
    deltas = []
    for begin, *middle, end in blocks:
        assert (begin.type, end.type) == ("content_block_start", "content_block_stop")
        assert all(event.type == "content_block_delta" for event in middle)
        deltas.append({event.delta.type for event in middle})  # type: ignore[union-attr]
    calls = {"input_json_delta"}
    assert deltas == [{"thinking_delta", "signature_delta"}, {"text_delta"}, calls, calls]


def test_an_answer_that_is_sent_back_is_the_prompt_that_was_cached() -> None:
    with talking(SCRIPT.split(f"\n{CALL.replace('Paris', 'Rome')}")[0]) as (claude, engine):
        message = ask(claude)
        before = engine.asked[-1][0]["prompt"]
        results: Any = [
            {"type": "tool_result", "tool_use_id": block.id, "content": "rain"}
            for block in message.content
            if block.type == "tool_use"
        ]
        again: Any = [*ASK, message.to_param(), {"role": "user", "content": results}]
        claude.messages.create(model="fake", max_tokens=9, messages=again, tools=TOOLS)
        prompt = engine.asked[-1][0]["prompt"]
        assert prompt.startswith(f"{before}<think>\nIn é?\n</think>\n\nI ask.\n<tool_call>\n")
        assert prompt.endswith("</tool_call><tool>rain<assistant>")


def test_one_call_at_a_time(claude: anthropic.Anthropic) -> None:
    message = ask(claude, tool_choice={"type": "auto", "disable_parallel_tool_use": True})
    assert [block.type for block in message.content] == ["thinking", "text", "tool_use"]


def test_no_calls_where_none_are_wanted(claude: anthropic.Anthropic) -> None:
    message = ask(claude, tool_choice={"type": "none"})
    assert (message.stop_reason, {block.type for block in message.content}) == ("end_turn", {"thinking", "text"})


@pytest.mark.parametrize(
    ("choice", "max_calls"), [({"type": "any"}, None), ({"type": "tool", "name": "weather"}, 1)], ids=["any", "tool"]
)
def test_a_tool_that_must_be_called(choice: dict[str, Any], max_calls: int | None) -> None:
    with talking(CALL) as (claude, engine):
        assert ask(claude, tool_choice=choice).stop_reason == "tool_use"
        wanted = engine.asked[-1][1].structured_outputs
        assert wanted is not None
        assert wanted.tool_calls is not None
        assert (set(wanted.tool_calls.tools), wanted.tool_calls.max_calls) == ({"weather"}, max_calls)
        ask(claude)
        assert engine.asked[-1][1].structured_outputs is None
        with pytest.raises(anthropic.BadRequestError, match="among the tools"):
            ask(claude, tool_choice={"type": "tool", "name": "other"})
        with pytest.raises(anthropic.BadRequestError):
            ask(claude, tool_choice={"type": "any"}, tools=[])


def test_an_answer_that_must_be_json() -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "additionalProperties": False}
    with talking('{"city": "Rome"}') as (claude, engine):
        message = ask(claude, tools=[], output_config={"format": {"type": "json_schema", "schema": schema}})
        assert [block.type for block in message.content] == ["text"]
        wanted = engine.asked[-1][1].structured_outputs
        assert wanted is not None
        assert wanted.json == schema
        with pytest.raises(anthropic.BadRequestError):
            ask(claude, output_config={"format": {"type": "json_schema"}})


def test_thinking_that_the_template_opens() -> None:
    with talking("Hm.\n</think>\n\nYes.") as (claude, _):
        message = ask(claude, thinking={"type": "enabled", "budget_tokens": 2000})
        assert [block.to_dict().get("thinking") or block.to_dict().get("text") for block in message.content] == [
            "Hm.",
            "Yes.",
        ]


def test_a_call_that_is_cut_off_keeps_what_is_there() -> None:
    words = "x" * 600
    with talking('<tool_call>\n{"name": "weather", "arguments": {"city": "' + words + '", "day": "Mo') as (claude, _):
        assert ask(claude).content[0].to_dict()["input"] == {"city": words}, "the whole values"
    with talking(SCRIPT) as (claude, _):
        message = ask(claude, max_tokens=len(SCRIPT.encode()) - 20)
        assert (message.stop_reason, message.content[2].type) == ("max_tokens", "tool_use")
