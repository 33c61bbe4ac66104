"""Clients' breakpoints over HTTP."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from fake_engine import FakeEngine, serving, state_of
from real_engine import running_engine

from milepost.engine.places import Places

EPHEMERAL = {"cache_control": {"type": "ephemeral"}}


def asked_places(engine: FakeEngine) -> Places:
    places: Places = engine.asked[-1][0]["places"]
    return places


def test_cache_control_in_messages_reaches_the_engine_and_not_the_prompt(
    http: httpx.Client, engine: FakeEngine
) -> None:
    messages = [
        {"role": "system", "content": [{"type": "text", "text": "é", **EPHEMERAL}]},
        {"role": "user", "content": "question", **EPHEMERAL},
    ]
    answer = http.post("/v1/chat/completions", json={"model": "", "messages": messages})
    assert answer.status_code == 200
    assert engine.asked[-1][0]["prompt"] == "<system>é<user>question<assistant>"
    begin, end = len("<system>é<user>".encode()), len("<system>é<user>question".encode())
    assert asked_places(engine) == Places((begin,), (len("<system>é".encode()), end))


def test_cache_control_in_a_tool(http: httpx.Client, engine: FakeEngine) -> None:
    tools = [{"type": "function", "function": {"name": "f"}, **EPHEMERAL}]
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "q"}]
    http.post("/v1/chat/completions", json={"model": "", "messages": messages, "tools": tools})
    assert asked_places(engine).breakpoints == (len("<system>s<user>"),)


@pytest.mark.parametrize("name", ["text", "template", "tokenizer"])
def test_template_variables_may_have_any_name(http: httpx.Client, name: str) -> None:
    body = {"model": "", "messages": [{"role": "user", "content": "q"}], "chat_template_kwargs": {name: "x"}}
    assert http.post("/v1/chat/completions", json=body).status_code == 200


def test_positions_of_a_completion_count_for_each_prompt(http: httpx.Client, engine: FakeEngine) -> None:
    body = {"model": "", "prompt": [[1, 2, 3], [1, 2, 4]], "max_tokens": 1, "cache_breakpoints": [2]}
    assert http.post("/v1/completions", json=body).status_code == 200
    assert [asked[0]["places"] for asked in engine.asked[-2:]] == [Places((), (2,))] * 2


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("value", [[4], [0], [2, 1], "2", [1.5], {"a": 1}, list(range(1, 100))])
def test_wrong_positions_are_refused(http: httpx.Client, value: Any, stream: bool) -> None:
    body = {"model": "", "prompt": [1, 2, 3], "max_tokens": 1, "cache_breakpoints": value, "stream": stream}
    answer = http.post("/v1/completions", json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["type"]) == (400, "cache_breakpoints", "invalid_request_error")


def test_a_named_place_is_resumed_where_no_other_state_is_kept() -> None:
    with running_engine(prefix_cache_retention_interval=0) as engine, serving(state_of(engine)) as url:  # type: ignore[arg-type]

        def cached(prompt: list[int], **fields: Any) -> int:
            answer = httpx.post(
                f"{url}/v1/completions", json={"model": "", "prompt": prompt, "max_tokens": 1, **fields}, timeout=60
            )
            return int(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"])

        for first_token, fields, resumed in ((1, {}, 0), (2, {"cache_breakpoints": [150]}, 128)):
            shared = [first_token, *range(149)]
            assert cached([*shared, *[5] * 150], **fields) == 0
            assert cached([*shared, *[6] * 50]) == resumed
