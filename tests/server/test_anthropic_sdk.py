"""What Anthropic's clients help with, beyond plain requests; they check the answers against their own types."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import pytest
from fake_engine import REPLY, FakeEngine, serving, state_of, wait_until
from sdk_script import ASK_JSON, ASK_WEATHER, HELLO, scripted, weather

FAKE: dict[str, Any] = {"model": "fake", "max_tokens": 200}
TOOLS: list[Any] = [{"name": "weather", "input_schema": weather.model_json_schema()}]
asked: list[str] = []


@anthropic.beta_tool(name="weather")
def look_outside(city: str) -> str:
    """The weather.

    Args:
        city: Where.
    """
    asked.append(city)
    return "rain"


@anthropic.beta_async_tool(name="weather")
async def look_outside_soon(city: str) -> str:
    """The weather.

    Args:
        city: Where.
    """
    asked.append(city)
    return "rain"


def client_of(url: str, **settings: Any) -> anthropic.Anthropic:
    settings = {"api_key": "x", "max_retries": 0, "timeout": 30, **settings}
    return anthropic.Anthropic(base_url=url, _strict_response_validation=True, **settings)


@pytest.fixture(scope="module")
def script() -> Iterator[tuple[str, FakeEngine]]:
    with scripted() as served:
        yield served


@pytest.fixture(scope="module")
def sdk(script: tuple[str, FakeEngine]) -> Iterator[anthropic.Anthropic]:
    with client_of(script[0]) as client:
        yield client


def test_every_answer_fits_the_client_s_types(sdk: anthropic.Anthropic) -> None:
    for messages, models in ((sdk.messages, sdk.models), (sdk.beta.messages, sdk.beta.models)):
        assert messages.create(**FAKE, messages=HELLO).stop_reason == "end_turn"
        assert messages.create(**FAKE, messages=ASK_WEATHER, tools=TOOLS).stop_reason == "tool_use"
        *_, last = messages.create(**FAKE, messages=ASK_WEATHER, tools=TOOLS, stream=True)
        assert last.type == "message_stop"
        assert messages.count_tokens(model="fake", messages=HELLO).input_tokens == len("<user>Hello<assistant>")
        assert list(models.list()) == [models.retrieve("fake")]


def test_the_events_of_a_stream(sdk: anthropic.Anthropic) -> None:
    with sdk.messages.stream(**FAKE, messages=HELLO) as stream:
        assert "".join(stream.text_stream) == REPLY
        assert stream.get_final_text() == REPLY
        assert stream.request_id is not None
    with sdk.messages.stream(**FAKE, messages=ASK_WEATHER, tools=TOOLS) as stream:
        events = list(stream)
        message = stream.get_final_message()
    kinds = {event.type for event in events}
    assert {"thinking", "signature", "input_json", "content_block_stop", "message_stop"} <= kinds
    assert "".join(event.thinking for event in events if event.type == "thinking") == "Hm."
    (call,) = (block for block in message.content if block.type == "tool_use")
    *_, snapshot = (event.snapshot for event in events if event.type == "input_json")
    assert call.input == snapshot == {"city": "Paris"}
    with sdk.messages.stream(**FAKE, messages=HELLO) as stream:
        stream.until_done()
        assert stream.current_message_snapshot.usage.output_tokens == len(REPLY.encode())


def test_an_answer_is_parsed(sdk: anthropic.Anthropic) -> None:
    for messages in (sdk.messages, sdk.beta.messages):
        parsed: Any = messages.parse(**FAKE, messages=ASK_JSON, output_format=weather)
        assert parsed.parsed_output == weather(city="Rome")
        with messages.stream(**FAKE, messages=ASK_JSON, output_format=weather) as stream:
            streamed: Any = stream.get_final_message()
        assert streamed.parsed_output == weather(city="Rome")


@pytest.mark.parametrize("stream", [False, True])
def test_the_client_runs_tools_until_there_is_an_answer(script: tuple[str, FakeEngine], stream: bool) -> None:
    """It would rather send each message once, and have the server keep the others; told that this one does not, it
    sends all of them."""
    url, engine = script
    asked.clear()
    with client_of(url) as client:
        runner: Any = client.beta.messages.tool_runner(
            **FAKE, messages=ASK_WEATHER, tools=[look_outside], stream=stream
        )
        final = runner.until_done()
    assert (asked, final.content[0].text) == (["Paris"], "It rains.")
    prompt = engine.asked[-1][0]["prompt"]
    assert prompt.startswith("[weather]<user>Weather?<assistant><think>\nHm.\n</think>\n\n")
    assert prompt.endswith("</tool_call><tool>rain<assistant>")


def test_threads_are_refused_in_the_words_that_clients_know(sdk: anthropic.Anthropic) -> None:
    """Left alone, the field would leave the model with the last message of a conversation, and nobody told."""
    for thread in ({"type": "create"}, {"type": "continue", "previous_message_id": "msg_1"}):
        for ask in (lambda extra: sdk.messages.create(**FAKE, messages=HELLO, extra_body=extra), count(sdk)):
            with pytest.raises(anthropic.BadRequestError, match="keeps no threads") as refused:
                ask({"thread": thread})
            assert isinstance(refused.value.body, dict)
            details = refused.value.body["error"]["details"]
            assert details == {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
    assert sdk.messages.create(**FAKE, messages=HELLO, extra_body={"thread": None}).content


def test_a_thread_goes_on_without_the_server(script: tuple[str, FakeEngine], sdk: anthropic.Anthropic) -> None:
    thread = sdk.beta.messages.thread(**FAKE, unsupported_request_behavior="continue_unthreaded")
    for text in ("Hello", "And?"):
        assert thread.send({"role": "user", "content": text}).content[0].to_dict()["text"] == REPLY
    assert script[1].asked[-1][0]["prompt"] == f"<user>Hello<assistant>{REPLY}<user>And?<assistant>"


def count(sdk: anthropic.Anthropic) -> Any:
    return lambda extra: sdk.messages.count_tokens(model="fake", messages=HELLO, extra_body=extra)


def test_the_answer_as_it_came(sdk: anthropic.Anthropic) -> None:
    raw = sdk.messages.with_raw_response.create(**FAKE, messages=HELLO)
    message = raw.parse()
    assert raw.headers["request-id"] == message._request_id == message.id.replace("msg_", "req_")
    with sdk.messages.with_streaming_response.create(**FAKE, messages=HELLO, stream=True) as answer:
        assert [line for line in answer.iter_lines() if line][-2:] == [
            "event: message_stop",
            'data: {"type":"message_stop"}',
        ]
    with pytest.raises(anthropic.NotFoundError) as missing:
        sdk.models.retrieve("other")
    assert missing.value.request_id != raw.headers["request-id"], "errors have one, too"


def test_the_class_of_each_error(sdk: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.BadRequestError, match="prompt is too long"):
        sdk.messages.create(**FAKE, messages=[{"role": "user", "content": "x" * 5000}])
    with pytest.raises(anthropic.NotFoundError):
        sdk.messages.create(model="other", max_tokens=1, messages=HELLO)
    with scripted(api_keys=("one",)) as (url, engine):
        with client_of(url) as closed, pytest.raises(anthropic.AuthenticationError):
            closed.models.list()
        for key in ({"api_key": "one"}, {"api_key": None, "auth_token": "one"}):
            with client_of(url, **key) as client:
                assert client.messages.create(**FAKE, messages=HELLO).content
                assert client.models.retrieve("fake").id == "fake"
        engine.fail = ZeroDivisionError()
        with client_of(url, api_key="one") as client, pytest.raises(anthropic.InternalServerError):
            client.messages.create(**FAKE, messages=HELLO)
    with serving(state_of(None)) as url, client_of(url) as early, pytest.raises(anthropic.APIStatusError) as loading:
        early.messages.create(**FAKE, messages=HELLO)
    assert loading.value.status_code == 503


def test_a_client_that_gives_up_ends_its_request() -> None:
    engine = FakeEngine(step_s=60)
    with serving(state_of(engine)) as url, client_of(url, timeout=0.2) as client:
        with pytest.raises(anthropic.APITimeoutError):
            client.messages.create(**FAKE, messages=HELLO)
        wait_until(lambda: not engine.running)
        with (
            pytest.raises((anthropic.APITimeoutError, httpx.TimeoutException)),
            client.messages.stream(**FAKE, messages=HELLO) as stream,
        ):
            stream.until_done()
        wait_until(lambda: not engine.running)


def test_the_asynchronous_client(script: tuple[str, FakeEngine]) -> None:
    async def main() -> None:
        async with anthropic.AsyncAnthropic(base_url=script[0], api_key="x", max_retries=0, timeout=30) as sdk:
            assert (await sdk.messages.create(**FAKE, messages=HELLO)).content[0].to_dict()["text"] == REPLY
            async with sdk.messages.stream(**FAKE, messages=HELLO) as stream:
                assert "".join([text async for text in stream.text_stream]) == REPLY
                assert (await stream.get_final_message()).stop_reason == "end_turn"
            events = await sdk.messages.create(**FAKE, messages=ASK_WEATHER, tools=TOOLS, stream=True)
            assert [event.type async for event in events][-1] == "message_stop"
            assert (await sdk.messages.count_tokens(model="fake", messages=HELLO)).input_tokens > 0
            parsed: Any = await sdk.messages.parse(**FAKE, messages=ASK_JSON, output_format=weather)
            assert parsed.parsed_output == weather(city="Rome")
            asked.clear()
            runner = sdk.beta.messages.tool_runner(**FAKE, messages=ASK_WEATHER, tools=[look_outside_soon])
            assert (await runner.until_done()).content[0].to_dict()["text"] == "It rains."
            assert asked == ["Paris"]
            assert [model.id async for model in sdk.models.list()] == ["fake"]
            raw = await sdk.messages.with_raw_response.create(**FAKE, messages=HELLO)
            assert raw.headers["request-id"].startswith("req_")
            with pytest.raises(anthropic.NotFoundError):
                await sdk.messages.create(model="other", max_tokens=1, messages=HELLO)

    asyncio.run(main())
