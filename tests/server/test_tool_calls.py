"""Tools and reasoning in /v1/chat/completions, through the official client; the model is a script."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import openai
import pydantic
import pytest
from fake_engine import FakeEngine, serving, state_of

QWEN = (
    "{%- for tool in tools or [] %}[{{ tool.function.name }}]{% endfor %}"
    "{%- for message in messages %}<{{ message.role }}>{{ message.content }}"
    "{%- for call in message.tool_calls or [] %}<tool_call>{{ call.function.name }}"
    "{%- for name, value in call.function.arguments | items %} {{ name }}={{ value }}{% endfor %}</tool_call>"
    "{%- endfor %}"
    "{%- endfor %}<assistant>{% if think %}<think>\n{% endif %}"
)
TOOLS = [
    {
        "type": "function",
        "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
    }
]
ASK = [{"role": "user", "content": "Weather?"}]
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
ARGUMENTS = '{"city": "Paris"}'
SCRIPT = f"<think>\nIn é?\n</think>\n\nI ask.\n\n{CALL}\n{CALL.replace('Paris', 'Rome')}"


@contextmanager
def talking(reply: str, template: str = QWEN) -> Iterator[tuple[openai.OpenAI, FakeEngine]]:
    engine = FakeEngine(reply=reply, template=template)
    engine.max_model_len = 4096
    with serving(state_of(engine)) as url, openai.OpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0) as client:
        yield client, engine


@pytest.fixture(scope="module")
def client() -> Iterator[openai.OpenAI]:
    with talking(SCRIPT) as (client, _):
        yield client


def test_answer(client: openai.OpenAI):
    (choice,) = client.chat.completions.create(model="fake", messages=ASK, tools=TOOLS).choices
    message = choice.message
    assert (choice.finish_reason, message.content) == ("tool_calls", "I ask.")
    assert message.reasoning == message.reasoning_content == "In é?"
    one, other = message.tool_calls
    assert (one.type, one.function.name, one.function.arguments) == ("function", "weather", ARGUMENTS)
    assert json.loads(other.function.arguments) == {"city": "Rome"}
    assert one.id.startswith("call_")
    assert one.id != other.id


def test_stream(client: openai.OpenAI):
    chunks = list(client.chat.completions.create(model="fake", messages=ASK, tools=TOOLS, stream=True))
    deltas = [chunk.choices[0].delta for chunk in chunks]
    assert "".join(delta.content or "" for delta in deltas) == "I ask."
    reasoning = [delta.model_extra for delta in deltas if delta.model_extra]
    assert all(extra["reasoning"] == extra["reasoning_content"] for extra in reasoning)
    assert "".join(extra["reasoning"] for extra in reasoning) == "In é?"
    parts = [call for delta in deltas for call in delta.tool_calls or ()]
    starts = [part for part in parts if part.id]
    assert [(part.index, part.type, part.function.name) for part in starts] == [
        (0, "function", "weather"),
        (1, "function", "weather"),
    ]
    assert "".join(part.function.arguments for part in parts if part.index == 0) == ARGUMENTS
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None] * (len(chunks) - 1) + ["tool_calls"]


def test_the_client_s_own_reading_of_a_stream(client: openai.OpenAI):
    with client.chat.completions.stream(model="fake", messages=ASK, tools=TOOLS) as stream:
        kinds = {event.type for event in stream}
        message = stream.get_final_completion().choices[0].message
    assert "tool_calls.function.arguments.done" in kinds
    assert (message.content, message.tool_calls[0].function.arguments) == ("I ask.", ARGUMENTS)


def test_only_one_call(client: openai.OpenAI):
    ask = {"model": "fake", "messages": ASK, "tools": TOOLS, "parallel_tool_calls": False}
    (call,) = client.chat.completions.create(**ask).choices[0].message.tool_calls
    assert call.function.arguments == ARGUMENTS
    chunks = client.chat.completions.create(**ask, stream=True)
    assert {call.index for chunk in chunks for call in chunk.choices[0].delta.tool_calls or ()} == {0}


def test_samples_are_read_apart(client: openai.OpenAI):
    answer = client.chat.completions.create(model="fake", messages=ASK, tools=TOOLS, n=2)
    assert [len(choice.message.tool_calls) for choice in answer.choices] == [2, 2]
    assert len({call.id for choice in answer.choices for call in choice.message.tool_calls}) == 4
    chunks = list(client.chat.completions.create(model="fake", messages=ASK, tools=TOOLS, n=2, stream=True))
    for index in (0, 1):
        mine = [chunk.choices[0] for chunk in chunks if chunk.choices[0].index == index]
        assert sum(bool(call.id) for choice in mine for call in choice.delta.tool_calls or ()) == 2
        assert mine[-1].finish_reason == "tool_calls"


def test_nothing_to_call(client: openai.OpenAI):
    """What looks like a call is then text."""
    for change in ({}, {"tools": TOOLS, "tool_choice": "none"}, {"tools": []}):
        (choice,) = client.chat.completions.create(model="fake", messages=ASK, **change).choices
        assert (choice.finish_reason, choice.message.tool_calls) == ("stop", None)
        assert choice.message.content == SCRIPT.partition("</think>\n\n")[2]
        assert choice.message.reasoning == "In é?"


def test_an_answer_cut_off_in_a_call(client: openai.OpenAI):
    ask = {"model": "fake", "messages": ASK, "tools": TOOLS, "max_tokens": len(SCRIPT.encode()) - 20}
    (choice,) = client.chat.completions.create(**ask).choices
    assert (choice.finish_reason, len(choice.message.tool_calls)) == ("length", 1)
    assert choice.message.content.startswith("I ask.<tool_call>")


def test_log_probabilities_cover_every_token(client: openai.OpenAI):
    ask = {"model": "fake", "messages": ASK, "tools": TOOLS, "logprobs": True}
    chunks = client.chat.completions.create(**ask, stream=True)
    told = [entry for chunk in chunks if chunk.choices[0].logprobs for entry in chunk.choices[0].logprobs.content]
    assert len(told) == len(SCRIPT.encode())
    assert len(client.chat.completions.create(**ask).choices[0].logprobs.content) == len(told)


def test_reasoning_opened_by_the_template():
    with talking("Well.\n</think>\n\nYes.") as (client, _):
        ask = {"model": "fake", "messages": ASK}
        plain = client.chat.completions.create(**ask).choices[0].message
        assert plain.content == "Well.\n</think>\n\nYes."
        extra = {"chat_template_kwargs": {"think": True}}
        message = client.chat.completions.create(**ask, extra_body=extra).choices[0].message
        assert (message.reasoning, message.content) == ("Well.", "Yes.")


def test_a_message_that_goes_on_with_its_reasoning():
    messages = [*ASK, {"role": "assistant", "content": "<think>One, "}]
    extra = {"continue_final_message": True}
    template = "{{ messages[-1].content }}{# <think> #}"
    with talking("two.</think>Three.", template) as (client, _):
        answer = client.chat.completions.create(model="fake", messages=messages, extra_body=extra)
    assert (answer.choices[0].message.reasoning, answer.choices[0].message.content) == ("two.", "Three.")


def test_a_whole_turn():
    """The call's result goes back, and the template sees arguments as an object."""
    with talking(CALL) as (client, engine):
        first = client.chat.completions.create(model="fake", messages=ASK, tools=TOOLS).choices[0].message
        assert first.content is None
        call = first.tool_calls[0]
        result = {"role": "tool", "tool_call_id": call.id, "content": [{"type": "text", "text": "Sun."}]}
        client.chat.completions.create(model="fake", messages=[*ASK, first, result], tools=TOOLS)
    told = engine.asked[-1][0]["prompt"]
    assert told == "[weather]<user>Weather?<assistant><tool_call>weather city=Paris</tool_call><tool>Sun.<assistant>"


def test_tools_of_other_types_are_skipped_and_named():
    with talking("Yes.") as (client, engine):
        tools = [{"type": "web_search"}, *TOOLS, {"type": "mcp\r\nX: y", "server_url": "x"}, {"type": "function"}]
        raw = client.chat.completions.with_raw_response.create(model="fake", messages=ASK, tools=tools)
        assert raw.headers["x-milepost-skipped-tools"] == "web_search, mcpXy, function"
        assert engine.asked[-1][0]["prompt"].startswith("[weather]<user>")
        raw = client.chat.completions.with_raw_response.create(model="fake", messages=ASK, tools=TOOLS)
        assert "x-milepost-skipped-tools" not in raw.headers


def test_ignored_fields_are_named():
    with talking("Yes.") as (client, _):
        url = f"{client.base_url}chat/completions"
        body = {"model": "", "messages": ASK, "store": True, "é\r\n": 1, "x" * 100: 2, "temperature": 0}
        for stream in (False, True):
            answer = httpx.post(url, json=body | {"stream": stream})
            assert answer.headers["x-milepost-ignored-fields"] == f"store, unknown, {'x' * 64}"
        refused = httpx.post(url, json=body | {"temperature": -1})
        assert (refused.status_code, refused.headers["x-milepost-ignored-fields"][:5]) == (400, "store")
        many = httpx.post(url, json={"model": "", "messages": ASK} | {f"f{i}": i for i in range(10_000)})
        assert many.headers["x-milepost-ignored-fields"].count(",") == 31
        assert "x-milepost-ignored-fields" not in httpx.post(url, json={"model": "", "messages": ASK}).headers


@pytest.mark.parametrize("content", ["I ask.", [{"type": "text", "text": "I ask."}], None])
def test_a_template_that_leaves_out_calls_gets_them_as_text(content: object):
    """LFM2's and Granite 3's: the model would not see what it called. Its own words come back to it."""
    template = (
        "{# <|tool_call_start|> #}{% for message in messages %}<{{ message.role }}>{{ message.content }}{% endfor %}"
    )
    said = '<|tool_call_start|>[weather(city="Paris")]<|tool_call_end|>'
    with talking(said, template) as (client, engine):
        call = client.chat.completions.create(model="fake", messages=ASK, tools=TOOLS).choices[0].message.tool_calls[0]
        called = {"role": "assistant", "content": content, "tool_calls": [call.model_dump()]}
        result = {"role": "tool", "tool_call_id": call.id, "content": "Sun."}
        client.chat.completions.create(model="fake", messages=[*ASK, called, result], tools=TOOLS)
    between = "\n" if isinstance(content, list) else ""
    told = f"<user>Weather?<assistant>{said}{between}{'I ask.' if content else ''}<tool>Sun."
    assert engine.asked[-1][0]["prompt"] == told


def test_how_much_to_think_is_the_template_s_to_read():
    template = "{{ reasoning_effort }} {{ enable_thinking }}"
    with talking("Yes.", template) as (client, engine):
        for effort, told in (("low", "low "), ("none", "none False")):
            client.chat.completions.create(model="fake", messages=ASK, reasoning_effort=effort)
            assert engine.asked[-1][0]["prompt"] == told
        extra = {"chat_template_kwargs": {"enable_thinking": True}}
        client.chat.completions.create(model="fake", messages=ASK, reasoning_effort="none", extra_body=extra)
        assert engine.asked[-1][0]["prompt"] == "none True"


def test_reasoning_can_be_left_out(client: openai.OpenAI):
    ask = {"model": "fake", "messages": ASK, "tools": TOOLS, "extra_body": {"include_reasoning": False}}
    message = client.chat.completions.create(**ask).choices[0].message
    assert (message.content, len(message.tool_calls), message.model_extra) == ("I ask.", 2, {})
    chunks = client.chat.completions.create(**ask, stream=True)
    assert not any(chunk.choices[0].delta.model_extra for chunk in chunks)


def test_the_client_s_own_reading_of_a_tool(client: openai.OpenAI):
    class weather(pydantic.BaseModel):
        city: str

    tools = [openai.pydantic_function_tool(weather)]
    calls = client.chat.completions.parse(model="fake", messages=ASK, tools=tools).choices[0].message.tool_calls
    assert [call.function.parsed_arguments for call in calls] == [weather(city="Paris"), weather(city="Rome")]


def test_what_is_only_known_at_the_end_comes_before_the_reason():
    """A call without its last brace is one once nothing more comes: name, arguments and the end in one step."""
    with talking(f'<tool_call>{{"name": "weather", "arguments": {ARGUMENTS}') as (client, _):
        chunks = list(client.chat.completions.create(model="fake", messages=ASK, tools=TOOLS, stream=True))
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None] * (len(chunks) - 1) + ["tool_calls"]
    calls = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or ()]
    assert [(call.function.name, call.function.arguments) for call in calls] == [("weather", ""), (None, ARGUMENTS)]
