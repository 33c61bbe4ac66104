"""OpenAI's cache controls in chats, through the official client; and what it is told of them."""

from typing import Any

import httpx
import openai
import pytest
from fake_engine import REPLY, FakeEngine

from milepost.engine.chat_marks import breaks
from milepost.engine.places import Places

MARK = {"prompt_cache_breakpoint": {"mode": "explicit", "ttl": "30m"}}
LONG = "x" * 130


def ask(client: openai.OpenAI, messages: list[Any] | None = None, **fields: Any) -> Any:
    messages = messages or [{"role": "user", "content": LONG}]
    return client.chat.completions.create(model="fake", messages=messages, **fields)


def test_breakpoints_in_parts_reach_the_engine_and_not_the_prompt(client: openai.OpenAI, engine: FakeEngine):
    system = {"role": "system", "content": [{"type": "text", "text": "a", **MARK}, {"type": "text", "text": "b"}]}
    ask(client, [system, {"role": "user", "content": [{"type": "text", "text": "q", **MARK}]}])
    prompt, *_ = engine.asked[-1]
    assert prompt["prompt"] == "<system>a\nb<user>q<assistant>"
    places: Places = prompt["places"]
    assert places.breakpoints == (len("<system>a"), len("<system>a\nb<user>q"))


@pytest.mark.parametrize(
    ("mark", "is_one"),
    [
        (MARK, True),
        ({"cache_control": {"type": "ephemeral"}}, True),
        ({"prompt_cache_breakpoint": {"mode": "implicit"}}, False),
        ({"prompt_cache_breakpoint": {}}, False),
        ({"prompt_cache_breakpoint": "explicit"}, False),
        ({"prompt_cache_breakpoint": None}, False),
        ({}, False),
    ],
)
def test_what_is_a_breakpoint(mark: dict, is_one: bool):
    assert breaks({"type": "text", "text": "a"} | mark) is is_one


def test_options_that_change_nothing_are_no_unknown_fields(client: openai.OpenAI):
    options: Any = {"mode": "explicit", "ttl": "30m"}
    answer = client.chat.completions.with_raw_response.create(
        model="fake",
        messages=[{"role": "user", "content": "q"}],
        prompt_cache_key="key",
        prompt_cache_options=options,
        prompt_cache_retention="24h",
    )
    assert "x-milepost-ignored-fields" not in answer.headers
    assert answer.parse().choices[0].message.content == REPLY


@pytest.mark.parametrize("stream", [False, True])
def test_prewarm_reads_the_prompt_and_generates_nothing(http: httpx.Client, engine: FakeEngine, stream: bool):
    body = {
        "model": "",
        "messages": [{"role": "user", "content": "q"}],
        "max_tokens": 9,
        "prompt_cache_options": {"prewarm": True},
    }
    answer = http.post("/v1/chat/completions", json=body | {"stream": stream})
    assert answer.status_code == 200
    assert "Caf" not in answer.text
    assert engine.asked[-1][1].max_tokens == 0


def test_what_was_written_and_what_was_read(client: openai.OpenAI, engine: FakeEngine):
    engine.forget()
    told = [ask(client).usage.prompt_tokens_details for _ in range(2)]
    assert [(one.cached_tokens, one.cache_write_tokens) for one in told] == [(0, 128), (144, 0)]
    engine.forget()
    *_, last = ask(client, stream=True, stream_options={"include_usage": True})
    assert (last.usage.prompt_tokens_details.cached_tokens, last.usage.prompt_tokens_details.cache_write_tokens) == (
        0,
        128,
    )
    engine.forget()
    short = ask(client, [{"role": "user", "content": "q"}]).usage
    assert short.prompt_tokens_details.cache_write_tokens == 0, "shorter than the first place that can be resumed"


def test_places_in_tokens(http: httpx.Client, engine: FakeEngine):
    body = {"model": "", "messages": [{"role": "user", "content": [{"type": "text", "text": LONG, **MARK}]}]}
    assert http.post("/v1/chat/completions", json=body | {"cache_breakpoints": [3, 64]}).status_code == 200
    assert engine.asked[-1][0]["places"].breakpoints == (3, 64, len(f"<user>{LONG}"))
    refused = http.post("/v1/chat/completions", json=body | {"cache_breakpoints": [9999]})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "cache_breakpoints")
