"""POST /v1/messages through Anthropic's own client, and the bytes of its streams."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import pytest
from fake_engine import REPLY, FakeEngine, failed_inside, serving, state_of

ASK: list[Any] = [{"role": "user", "content": "Where?"}]
MESSAGES = "/v1/messages"
TEXT = {"type": "text", "citations": None}
ENDED = {"stop_sequence": None, "stop_details": None, "container": None}


@pytest.fixture(scope="module")
def claude(url: str) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0, timeout=30) as client:
        yield client


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "fake", "messages": ASK, "max_tokens": 64, **fields}


def events_of(answer: httpx.Response) -> list[dict[str, Any]]:
    """The events of a stream, each with its name on a line of its own."""
    assert answer.text.endswith("\n\n")
    found = []
    for part in answer.text.removesuffix("\n\n").split("\n\n"):
        name, data = part.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


def test_create(claude: anthropic.Anthropic, engine: FakeEngine) -> None:
    message = claude.messages.create(model="fake", max_tokens=64, messages=ASK, system="Be brief.")
    assert [block.type for block in message.content] == ["text"]
    assert message.content[0].text == REPLY  # type: ignore[union-attr]
    assert (message.role, message.model, message.stop_reason, message.stop_sequence) == (
        "assistant",
        "fake",
        "end_turn",
        None,
    )
    assert message.id.startswith("msg_")
    assert message._request_id is not None
    assert message._request_id.startswith("req_")
    prompt = "<system>Be brief.<user>Where?<assistant>"
    assert engine.asked[-1][0]["prompt"] == prompt
    usage = message.usage
    assert (usage.input_tokens, usage.output_tokens) == (len(prompt), len(REPLY.encode()))
    assert (usage.cache_read_input_tokens, usage.cache_creation_input_tokens) == (0, 0)


def test_stream(claude: anthropic.Anthropic) -> None:
    whole = claude.messages.create(model="fake", max_tokens=64, messages=ASK)
    with claude.messages.stream(model="fake", max_tokens=64, messages=ASK) as stream:
        assert "".join(stream.text_stream) == REPLY
        message = stream.get_final_message()
    assert (message.content[0].text, message.stop_reason) == (REPLY, "end_turn")  # type: ignore[union-attr]
    assert message.usage.output_tokens == whole.usage.output_tokens
    with claude.beta.messages.stream(model="fake", max_tokens=64, messages=ASK, betas=["any-beta"]) as stream:
        assert stream.get_final_text() == REPLY, "?beta=true"


def test_life_cycle(http: httpx.Client) -> None:
    answer = http.post(MESSAGES, json=body(stream=True))
    assert answer.headers["content-type"].startswith("text/event-stream")
    start, begin, *deltas, end, last, stop = events_of(answer)
    assert start["message"]["content"] == []
    assert start["message"]["stop_reason"] is None
    assert start["message"]["usage"]["output_tokens"] == 1
    assert begin == {"type": "content_block_start", "index": 0, "content_block": TEXT | {"text": ""}}
    assert all(delta["type"] == "content_block_delta" for delta in deltas)
    assert "".join(delta["delta"]["text"] for delta in deltas) == REPLY
    assert end == {"type": "content_block_stop", "index": 0}
    assert last["delta"] == ENDED | {"stop_reason": "end_turn"}
    assert last["usage"]["output_tokens"] == len(REPLY.encode())
    assert stop == {"type": "message_stop"}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fields", "reason", "sequence", "text"),
    [
        ({"max_tokens": 3}, "max_tokens", None, "Caf"),
        ({"stop_sequences": ["Rome", "Paris"]}, "stop_sequence", "Paris", "Café in "),
        ({"max_tokens": 0}, "max_tokens", None, None),
    ],
)
def test_stop_reasons(
    http: httpx.Client, fields: dict[str, Any], reason: str, sequence: str | None, text: str | None, stream: bool
) -> None:
    answer = http.post(MESSAGES, json=body(stream=stream, **fields))
    if stream:
        events = events_of(answer)
        assert events[-2]["delta"] == ENDED | {"stop_reason": reason, "stop_sequence": sequence}
        pieces = [event["delta"]["text"] for event in events if event["type"] == "content_block_delta"]
        assert "".join(pieces).startswith(text or "")  # this engine holds back no beginnings of stop strings
    else:
        message = answer.json()
        assert (message["stop_reason"], message["stop_sequence"]) == (reason, sequence)
        assert message["content"] == ([] if text is None else [TEXT | {"text": text}])


def test_an_answer_may_ask_for_more_than_the_context_has() -> None:
    engine = FakeEngine(endless=True)
    with serving(state_of(engine)) as url:
        message = httpx.post(f"{url}{MESSAGES}", json=body(max_tokens=32_000)).json()
    assert message["stop_reason"] == "model_context_window_exceeded"
    assert message["usage"]["input_tokens"] + message["usage"]["output_tokens"] == engine.max_model_len


def test_sampling_fields_arrive(claude: anthropic.Anthropic, engine: FakeEngine) -> None:
    claude.messages.create(
        model="fake",
        max_tokens=5,
        messages=ASK,
        stop_sequences=["END"],
        metadata={"user_id": "someone"},
        service_tier="auto",
        extra_body={
            "temperature": 0.5,
            "top_p": 0.9,
            "top_k": 5,
            "seed": 3,
            "min_p": 0.1,
            "priority": 2,
            "cache_salt": "salt",
        },
    )
    _, params, priority, scope = engine.asked[-1]
    assert (params.temperature, params.top_p, params.top_k, params.stops) == (0.5, 0.9, 5, ("END",))
    assert (params.max_tokens, params.seed, params.min_p, priority) == (5, 3, 0.1, 2)
    claude.messages.create(model="fake", max_tokens=5, messages=ASK)
    assert engine.asked[-1][1].temperature == 0.25, "the model's own"
    assert engine.asked[-1][3] != scope


def test_a_stream_that_waits_for_its_prompt_is_kept_alive() -> None:
    with serving(state_of(FakeEngine(step_s=0.2), sse_ping_interval=0.02)) as url:
        events = events_of(httpx.post(f"{url}{MESSAGES}", json=body(stream=True, max_tokens=2), timeout=30))
        start, ping, *_ = events
        assert (start["type"], ping) == ("message_start", {"type": "ping"})
        assert start["message"]["usage"]["cache_read_input_tokens"] is None, "nobody knows yet"
        assert start["message"]["usage"]["input_tokens"] == len("<user>Where?<assistant>")
        others = [event["type"] for event in events if event["type"] != "ping"]
        assert others[-2:] == ["message_delta", "message_stop"]
        assert others.count("message_start") == others.count("message_stop") == 1
        assert events[-2]["usage"]["cache_read_input_tokens"] == 0
        quiet = events_of(httpx.post(f"{url}{MESSAGES}", json=body(stream=True, max_tokens=2, sse_ping_interval=-1)))
        assert {"type": "ping"} not in quiet
        with anthropic.Anthropic(base_url=url, api_key="none") as client:
            assert client.messages.create(model="fake", max_tokens=2, messages=ASK).content


def test_an_error_in_the_middle_ends_the_stream() -> None:
    engine = FakeEngine()
    engine.fail, engine.fail_after = failed_inside(), 3
    with serving(state_of(engine)) as url:
        answer = httpx.post(f"{url}{MESSAGES}", json=body(stream=True))
        *before, last = events_of(answer)
        assert last["error"]["type"] == "api_error"
        assert last["request_id"] == answer.headers["request-id"]
        assert [event["type"] for event in before].count("content_block_delta") == 3
        assert not any(event["type"] in ("error", "message_delta", "message_stop") for event in before)
        with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0) as client:
            with pytest.raises(anthropic.APIStatusError), client.messages.stream(**body()) as stream:
                stream.get_final_message()
            with pytest.raises(anthropic.InternalServerError):
                client.messages.create(**body())


def test_the_cache_is_explained_when_asked(http: httpx.Client) -> None:
    told = http.post(MESSAGES, json=body(), headers={"X-Milepost-Cache": "explain"}).json()["cache"]
    assert told["reason"] is None
    *_, last, _ = events_of(http.post(MESSAGES, json=body(stream=True, explain_cache=True)))
    assert last["cache"]["resumed_tokens"] == told["resumed_tokens"]
    assert "cache" not in http.post(MESSAGES, json=body()).json()
