"""From Anthropic's messages to a prompt, and what is left out of it on purpose."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from fake_engine import FakeEngine, serving, state_of

MESSAGES, COUNT = "/v1/messages", "/v1/messages/count_tokens"

TEMPLATE = (
    "{%- for message in messages %}<{{ message.role }}{% if message.tool_call_id %} {{ message.tool_call_id }}={{ "
    "message.name }}{% endif %}>{% if message.reasoning_content %}({{ message.reasoning_content }}){% endif %}"
    "{{ message.content }}{% for call in message.tool_calls or [] %}[{{ call.id }} {{ call.function.name }} "
    "{{ call.function.arguments | tojson }}]{% endfor %}{% endfor %}"
    "{%- for tool in tools or [] %}{{ tool | tojson }}{% endfor %}"
    "{%- if enable_thinking is defined %}{{ '{think' if enable_thinking else '{nothink' }}}{% endif %}"
    "{%- if add_generation_prompt %}<assistant>{% endif %}"
)

TOOL = {"name": "add", "description": "Adds.", "input_schema": {"type": "object"}}


@pytest.fixture(scope="module")
def engine() -> FakeEngine:
    engine = FakeEngine(template=TEMPLATE)
    engine.max_model_len = 2048
    return engine


@pytest.fixture(scope="module")
def http(engine: FakeEngine) -> Iterator[httpx.Client]:
    with serving(state_of(engine)) as url, httpx.Client(base_url=url, timeout=30) as client:
        yield client


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def user(*content: Any) -> dict[str, Any]:
    return {"role": "user", "content": [text(part) if isinstance(part, str) else part for part in content]}


def prompt_of(http: httpx.Client, engine: FakeEngine, messages: list[Any], **fields: Any) -> str:
    """The prompt that the engine got; counting its tokens gives the same number as the usage of the answer."""
    body = {"model": "fake", "messages": messages, **fields}
    answer = http.post(MESSAGES, json={**body, "max_tokens": 8})
    assert answer.status_code == 200, answer.text
    usage, counted = answer.json()["usage"], http.post(COUNT, json=body)
    assert counted.json() == {
        "input_tokens": usage["input_tokens"] + usage["cache_read_input_tokens"] + usage["cache_creation_input_tokens"]
    }
    told = ("x-milepost-removed", "x-milepost-skipped-tools")
    assert [answer.headers.get(name) for name in told] == [counted.headers.get(name) for name in told]
    prompt: str = engine.asked[-1][0]["prompt"]
    return prompt


def test_text_and_blocks(http: httpx.Client, engine: FakeEngine) -> None:
    conversation = [user("a", "b"), {"role": "assistant", "content": "c"}, {"role": "user", "content": "d"}]
    expected = "<user>a\nb<assistant>c<user>d<assistant>"
    assert prompt_of(http, engine, conversation) == expected
    assert prompt_of(http, engine, conversation, system="s") == f"<system>s{expected}"
    assert prompt_of(http, engine, conversation, system=[text("s"), text("t")]) == f"<system>s\nt{expected}"
    document = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "page"}}
    assert prompt_of(http, engine, [user(document, "q")]) == "<user>page\nq<assistant>"


def test_messages_of_one_role_are_one(http: httpx.Client, engine: FakeEngine) -> None:
    assert prompt_of(http, engine, [user("a"), user("b")]) == "<user>a\nb<assistant>"


def test_an_assistants_last_message_is_continued(http: httpx.Client, engine: FakeEngine) -> None:
    assert (
        prompt_of(http, engine, [user("q"), {"role": "assistant", "content": "It is ("}]) == "<user>q<assistant>It is ("
    )


def test_tools_and_their_results(http: httpx.Client, engine: FakeEngine) -> None:
    conversation = [
        user("1+2 and 3+4?"),
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "I add.", "signature": "x"},
                {"type": "redacted_thinking", "data": "x"},
                text("Adding."),
                {"type": "tool_use", "id": "c1", "name": "add", "input": {"a": 1, "b": 2}},
                {"type": "tool_use", "id": "c2", "name": "add", "input": {"a": 3, "b": 4}},
            ],
        },
        user(
            {"type": "tool_result", "tool_use_id": "c1", "content": "3"},
            {"type": "tool_result", "tool_use_id": "c2", "content": [text("se"), text("ven")], "is_error": False},
            {"type": "tool_result", "tool_use_id": "c3"},
            "So?",
        ),
    ]
    prompt = prompt_of(http, engine, conversation, tools=[TOOL])
    function = {"name": "add", "description": "Adds.", "parameters": {"type": "object"}}
    assert prompt.removesuffix("<assistant>").endswith(json.dumps({"type": "function", "function": function}))
    assert prompt.startswith(
        '<user>1+2 and 3+4?<assistant>(I add.)Adding.[c1 add {"a": 1, "b": 2}][c2 add {"a": 3, "b": 4}]'
        "<tool c1=add>3<tool c2=add>se\nven<tool c3=><user>So?"
    )


def test_tools_of_unknown_kind_are_skipped_by_name(http: httpx.Client, engine: FakeEngine) -> None:
    search = {"type": "web_search_20250305", "name": "web_search"}
    with_search = prompt_of(http, engine, [user("q")], tools=[TOOL, search])
    assert with_search == prompt_of(http, engine, [user("q")], tools=[TOOL])
    body = {"model": "", "messages": [user("q")], "tools": [search], "max_tokens": 1}
    assert http.post(MESSAGES, json=body).headers["x-milepost-skipped-tools"] == "web_search_20250305"


@pytest.mark.parametrize(
    ("thinking", "shown"),
    [
        (None, ""),
        ({"type": "enabled", "budget_tokens": 2000}, "{think}"),
        ({"type": "adaptive"}, "{think}"),
        ({"type": "disabled"}, "{nothink}"),
    ],
)
def test_thinking_is_the_templates(http: httpx.Client, engine: FakeEngine, thinking: Any, shown: str) -> None:
    assert prompt_of(http, engine, [user("q")], thinking=thinking) == f"<user>q{shown}<assistant>"
    fields = {"thinking": thinking, "chat_template_kwargs": {"enable_thinking": False}}
    assert prompt_of(http, engine, [user("q")], **fields) == "<user>q{nothink}<assistant>", "said directly"


def test_the_billing_block_is_removed_and_told(http: httpx.Client, engine: FakeEngine) -> None:
    prompts = set()
    for number in range(2):
        billing = text(f"x-anthropic-billing-header: cc_version=2.1.{number}; cch={number}1f;")
        system = [billing, text("You are an agent.")]
        prompts.add(prompt_of(http, engine, [user("q")], system=system))
        answer = http.post(
            MESSAGES, json={"model": "", "messages": [user("q")], "system": system, "max_tokens": 1, "stream": True}
        )
        assert answer.headers["x-milepost-removed"] == "x-anthropic-billing-header"
        assert prompt_of(http, engine, [user("q")], system=[billing]) == "<user>q<assistant>"
    assert prompts == {"<system>You are an agent.<user>q<assistant>"}
    answer = http.post(MESSAGES, json={"model": "", "messages": [user("q")], "system": "x", "max_tokens": 1})
    assert "x-milepost-removed" not in answer.headers


@pytest.mark.parametrize(
    ("messages", "told"),
    [
        ([user("a", {"type": "document", "source": {"type": "base64"}})], "messages.0.content.1: .* 'document'"),
        (
            [user({"type": "tool_result", "tool_use_id": "c", "content": [{"type": "audio"}]})],
            r"messages.0.content.0.content.0: .* 'audio'",
        ),
        ([{"role": "user", "content": None}], "messages.0.content: "),
        ([{"role": "user", "content": []}], "messages.0.content: .* at least one block"),
        ([{"role": "user", "content": [7]}], "messages.0.content: "),
        ([user({"type": "text"})], "messages.0.content.0.text: must be text"),
        ([user("a"), {"role": "tool", "content": "x"}], "messages.1.role: must be one of"),
        (
            [user("a"), {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "f"}]}],
            ".*input: must",
        ),
        ([user({"type": "tool_result"})], "messages.0.content.0.tool_use_id: must be text"),
        ([], "messages"),
        ("hello", "messages"),
    ],
)
def test_what_cannot_be_read_is_named(http: httpx.Client, messages: Any, told: str) -> None:
    for path in (MESSAGES, COUNT):
        answer = http.post(path, json={"model": "", "messages": messages, "max_tokens": 8})
        error = answer.json()
        assert (answer.status_code, error["type"], error["error"]["type"]) == (400, "error", "invalid_request_error")
        assert re.match(told, error["error"]["message"]), error
