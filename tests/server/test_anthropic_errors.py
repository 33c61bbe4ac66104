"""Errors in Anthropic's shape, and both of its headers for keys."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import httpx
import pytest
from fake_engine import FakeEngine, serving, state_of

ASK: list[Any] = [{"role": "user", "content": "Where?"}]
BODY = {"model": "fake", "messages": ASK, "max_tokens": 4}
MESSAGES, COUNT = "/v1/messages", "/v1/messages/count_tokens"


def error_of(answer: httpx.Response, status: int, kind: str) -> str:
    assert answer.status_code == status, answer.text
    told = answer.json()
    assert told["type"] == "error"
    assert told["error"]["type"] == kind
    assert set(told["error"]) == {"type", "message"}
    assert told["request_id"] == answer.headers["request-id"]
    message: str = told["error"]["message"]
    return message


def test_a_prompt_that_is_too_long(http: httpx.Client, engine: FakeEngine) -> None:
    words = "w" * engine.max_model_len
    num_tokens = len(f"<user>{words}<assistant>")
    body = {"model": "", "messages": [{"role": "user", "content": words}], "max_tokens": 1}
    for stream in (False, True):
        message = error_of(http.post(MESSAGES, json={**body, "stream": stream}), 400, "invalid_request_error")
        assert message.startswith(f"prompt is too long: {num_tokens} tokens > {engine.max_model_len - 1} maximum")
    assert http.post(COUNT, json=body).json() == {"input_tokens": num_tokens}, "counting it is no error"
    far = {**body, "messages": [{"role": "user", "content": "w" * 200 * engine.max_model_len}]}
    assert error_of(http.post(MESSAGES, json=far), 400, "invalid_request_error").startswith("prompt is too long: ")


def test_a_prompt_that_just_fits(http: httpx.Client, engine: FakeEngine) -> None:
    room = engine.max_model_len - len("<user><assistant>")
    body = {"model": "", "messages": [{"role": "user", "content": "w" * (room - 1)}], "max_tokens": 99}
    message = http.post(MESSAGES, json=body).json()
    assert (message["usage"]["output_tokens"], message["stop_reason"]) == (1, "model_context_window_exceeded")
    body["messages"] = [{"role": "user", "content": "w" * room}]
    error_of(http.post(MESSAGES, json=body), 400, "invalid_request_error")
    assert http.post(MESSAGES, json={**body, "max_tokens": 0}).status_code == 200, "read, and nothing written"


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"stop_sequences": "x"}, "stop_sequences"),
        ({"tool_choice": {"type": "maybe"}}, "tool_choice: must be of type"),
        ({"tool_choice": {"type": {}}}, "tool_choice: must be of type"),
        ({"tools": [{"input_schema": {}}]}, "tools: each must have a name"),
        ({"system": 7}, "system: must be text"),
    ],
)
def test_bad_fields(http: httpx.Client, fields: dict[str, Any], told: str) -> None:
    message = error_of(http.post(MESSAGES, json={**BODY, **fields}), 400, "invalid_request_error")
    assert message.startswith(told)


def test_fields_that_mean_nothing_do_no_harm(http: httpx.Client) -> None:
    strange = {"type": "text", "text": "a", "content": 7, "cache_control": 7}
    call = {"type": "tool_use", "id": "c", "name": "f", "input": {"a": float("inf")}, "content": [[]]}
    messages = [{"role": "user", "content": [strange]}, {"role": "assistant", "content": [call, strange]}, *ASK]
    body = {**BODY, "messages": messages, "system": [strange], "diagnostics": {"previous_message_id": 7}}
    assert http.post(MESSAGES, content=json.dumps(body)).status_code == 200


def test_no_json_no_model_no_route_no_room(url: str, http: httpx.Client) -> None:
    assert "JSON" in error_of(http.post(MESSAGES, content=b"{"), 400, "invalid_request_error")
    assert "`other`" in error_of(http.post(MESSAGES, json={**BODY, "model": "other"}), 404, "not_found_error")
    error_of(http.post(COUNT, json={**BODY, "model": "other"}), 404, "not_found_error")
    error_of(http.get("/v1/messages/nowhere"), 404, "not_found_error")
    error_of(http.get(MESSAGES), 405, "invalid_request_error")
    with serving(state_of(FakeEngine(), max_body_bytes=64)) as small:
        error_of(httpx.post(f"{small}{MESSAGES}", json={**BODY, "system": "s" * 99}), 413, "request_too_large")


def test_a_model_that_is_still_loading() -> None:
    with serving(state_of(None)) as url:
        answer = httpx.post(f"{url}{MESSAGES}", json=BODY)
        error_of(answer, 503, "overloaded_error")
        assert int(answer.headers["retry-after"]) > 0


def test_both_headers_for_keys() -> None:
    engine = FakeEngine()
    with serving(state_of(engine, api_keys=("one", "two"))) as url:

        def scope(**headers: str) -> str:
            answer = httpx.post(f"{url}{MESSAGES}?beta=true", json=BODY, headers=headers)
            assert answer.status_code == 200, answer.text
            return engine.asked[-1][3]

        one = scope(**{"x-api-key": "one"})
        assert scope(authorization="Bearer one", **{"anthropic-version": "2023-06-01", "anthropic-beta": "x"}) == one
        assert scope(authorization="Bearer one", **{"x-api-key": "not one"}) == one
        assert scope(authorization="Bearer not-one", **{"x-api-key": "one"}) == one
        assert scope(**{"x-api-key": "two"}) != one
        for headers in ({}, {"x-api-key": "three"}, {"x-api-key": ""}, {"authorization": "one"}):
            refused = httpx.post(f"{url}{MESSAGES}", json=BODY, headers=headers)
            assert "x-api-key" in error_of(refused, 401, "authentication_error")
        with anthropic.Anthropic(base_url=url, api_key="three", max_retries=0) as client:
            with pytest.raises(anthropic.AuthenticationError):
                client.messages.create(model="fake", max_tokens=4, messages=ASK)
            with pytest.raises(anthropic.AuthenticationError):
                client.messages.count_tokens(model="fake", messages=ASK)
        with anthropic.Anthropic(base_url=url, auth_token="two", max_retries=0) as client:
            assert client.messages.count_tokens(model="fake", messages=ASK).input_tokens > 0


def test_defects_stay_inside(http: httpx.Client, engine: FakeEngine) -> None:
    engine.fail = ZeroDivisionError("with the user's secret")
    try:
        message = error_of(http.post(MESSAGES, json=BODY), 500, "api_error")
    finally:
        engine.fail = None
    assert "secret" not in message
