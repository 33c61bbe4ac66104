"""What OpenAI's client helps with, beyond plain requests; it checks the answers against its own types."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from fake_engine import REPLY, FakeEngine, serving, state_of, vector_of, wait_until
from sdk_script import ASK_JSON, ASK_WEATHER, HELLO, scripted, weather

TOOL = openai.pydantic_function_tool(weather)
ITEM_TOOL = openai.pydantic_responses_function_tool(weather)


def client_of(url: str, strict: bool = True, **settings: Any) -> openai.OpenAI:
    """`strict`: an answer that its types do not foresee is an error."""
    settings = {"api_key": "x", "max_retries": 0, "timeout": 30, **settings}
    return openai.OpenAI(base_url=f"{url}/v1", _strict_response_validation=strict, **settings)


@pytest.fixture(scope="module")
def sdk() -> Iterator[openai.OpenAI]:
    with scripted() as (url, _), client_of(url) as client:
        yield client


def test_every_answer_fits_the_client_s_types(sdk: openai.OpenAI) -> None:
    assert sdk.chat.completions.create(model="fake", messages=HELLO, logprobs=True, top_logprobs=2).usage
    assert sdk.chat.completions.create(model="fake", messages=ASK_WEATHER, tools=[TOOL]).usage
    assert list(sdk.chat.completions.create(model="fake", messages=ASK_WEATHER, tools=[TOOL], stream=True))
    assert sdk.completions.create(model="fake", prompt="x", logprobs=2).usage
    assert sdk.models.list().data == [sdk.models.retrieve("fake")]
    response = sdk.responses.create(model="fake", input="Weather?", tools=[ITEM_TOOL])
    assert list(sdk.responses.create(model="fake", input=HELLO, stream=True))
    assert sdk.responses.retrieve(response.id) == response == sdk.responses.cancel(response.id)
    assert sdk.responses.input_items.list(response.id).data
    assert sdk.responses.input_tokens.count(model="fake", input="Hello").input_tokens == len("<user>Hello<assistant>")
    sdk.responses.delete(response.id)


def test_a_chat_is_parsed(sdk: openai.OpenAI) -> None:
    answer = sdk.chat.completions.parse(model="fake", messages=ASK_JSON, response_format=weather)
    assert answer.choices[0].message.parsed == weather(city="Rome")
    called = sdk.chat.completions.parse(model="fake", messages=ASK_WEATHER, tools=[TOOL]).choices[0].message.tool_calls
    assert called is not None
    assert called[0].function.parsed_arguments == weather(city="Paris")
    with pytest.raises(openai.LengthFinishReasonError) as cut:
        sdk.chat.completions.parse(model="fake", messages=ASK_JSON, response_format=weather, max_tokens=4)
    assert cut.value.completion.usage.completion_tokens == 4  # type: ignore[union-attr]


def test_the_events_of_a_chat_s_stream(sdk: openai.OpenAI) -> None:
    ask: dict[str, Any] = {"model": "fake", "stream_options": {"include_usage": True}}
    with sdk.chat.completions.stream(**ask, messages=ASK_JSON, response_format=weather, logprobs=True) as stream:
        events = list(stream)
        final = stream.get_final_completion()
    kinds = [event.type for event in events]
    assert {"chunk", "content.delta", "content.done", "logprobs.content.delta", "logprobs.content.done"} == {*kinds}
    (done,) = (event for event in events if event.type == "content.done")
    assert done.parsed == final.choices[0].message.parsed == weather(city="Rome")
    text = "".join(event.delta for event in events if event.type == "content.delta")
    assert (text, final.usage.completion_tokens) == ('{"city": "Rome"}', len(text))  # type: ignore[union-attr]
    with sdk.chat.completions.stream(**ask, messages=ASK_WEATHER, tools=[TOOL]) as stream:
        calls = [event for event in stream if event.type.startswith("tool_calls")]
        message = stream.get_final_completion().choices[0].message
    assert calls[-1].type == "tool_calls.function.arguments.done"
    assert calls[-1].parsed_arguments == weather(city="Paris")
    assert message.to_dict()["reasoning"] == "Hm."


def test_a_response_is_parsed_and_its_events_read(sdk: openai.OpenAI) -> None:
    assert sdk.responses.parse(model="fake", input=ASK_JSON, text_format=weather).output_parsed == weather(city="Rome")
    with sdk.responses.stream(model="fake", input=ASK_JSON, text_format=weather) as stream:
        events = list(stream)
        final = stream.get_final_response()
    assert final.output_parsed == weather(city="Rome")
    assert [event.type for event in events][:2] == ["response.created", "response.in_progress"]
    (done,) = (event for event in events if event.type == "response.output_text.done")
    assert done.parsed == weather(city="Rome")
    assert events[-1].type == "response.completed"
    with sdk.responses.stream(model="fake", input=ASK_WEATHER, tools=[ITEM_TOOL]) as stream:
        deltas = [event.delta for event in stream if event.type == "response.function_call_arguments.delta"]
        *_, call = stream.get_final_response().output
    assert call.parsed_arguments == weather(city="Paris")  # type: ignore[union-attr]
    assert "".join(deltas) == call.arguments  # type: ignore[union-attr]


@pytest.mark.parametrize("stream", [False, True])
def test_the_client_runs_tools_until_there_is_an_answer(stream: bool) -> None:
    runner = pytest.importorskip("openai.lib.responses_tool_runner", reason="older clients have none")
    asked: list[weather] = []

    def told(arguments: weather) -> str:
        asked.append(arguments)
        return "rain"

    tool = runner.RegisteredFunction.from_tool(ITEM_TOOL, execute=told)
    with scripted() as (url, engine), client_of(url) as client:
        tools = runner.ResponsesToolRunner(functions=[tool])
        final = tools.run(client, {"model": "fake", "input": ASK_WEATHER}, max_steps=3, stream=stream)
        prompt = engine.asked[-1][0]["prompt"]
    assert asked == [weather(city="Paris")]
    assert final.output_text == "It rains."
    assert prompt.startswith("[weather]<user>Weather?<assistant>")
    assert prompt.endswith("</tool_call><tool>rain<assistant>")


@pytest.mark.parametrize("format", [{}, {"encoding_format": "float"}, {"encoding_format": "base64"}])
def test_embeddings_in_each_format(format: dict[str, Any]) -> None:
    """Unless told otherwise the client asks for base64, and decodes it."""
    engine = FakeEngine()
    with serving(state_of(engine)) as url, client_of(url, strict=False) as client:
        vector = client.embeddings.create(model="fake", input="abc", **format).data[0].embedding
    if format.get("encoding_format") == "base64":
        assert isinstance(vector, str), "as it came, for whoever asks for it by name"
        return
    raw = vector_of([256, *b"abc"], "last")
    length = sum(x * x for x in raw) ** 0.5
    assert vector == pytest.approx([x / length for x in raw], rel=1e-6)


def test_the_answer_as_it_came(sdk: openai.OpenAI) -> None:
    raw = sdk.chat.completions.with_raw_response.create(model="fake", messages=HELLO)
    completion = raw.parse()
    assert raw.headers["content-type"] == "application/json"
    assert raw.headers["x-request-id"] == completion._request_id == completion.id.replace("chatcmpl-", "req_")
    with sdk.chat.completions.with_streaming_response.create(model="fake", messages=HELLO, stream=True) as answer:
        assert answer.headers["x-request-id"].startswith("req_")
        lines = [line for line in answer.iter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    with sdk.responses.with_streaming_response.create(model="fake", input="Hello") as whole:
        assert whole.parse().output_text == REPLY
    with pytest.raises(openai.NotFoundError) as missing:
        sdk.models.retrieve("other")
    assert str(missing.value.request_id).startswith("req_"), "errors have one, too"
    other = sdk.models.with_raw_response.list().headers["x-request-id"]
    assert other != raw.headers["x-request-id"]


def test_the_class_of_each_error(sdk: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as bad:
        sdk.chat.completions.create(model="fake", messages=HELLO, temperature=-1)
    assert (bad.value.type, bad.value.param) == ("invalid_request_error", "temperature")
    with pytest.raises(openai.BadRequestError) as long:
        sdk.responses.create(model="fake", input="x" * 5000)
    assert long.value.code == "context_length_exceeded"
    with pytest.raises(openai.NotFoundError) as missing:
        sdk.chat.completions.create(model="gpt", messages=HELLO)
    assert missing.value.code == "model_not_found"
    with scripted(api_keys=("one",)) as (url, engine), client_of(url, api_key="two") as client:
        with pytest.raises(openai.AuthenticationError) as closed:
            client.responses.create(model="fake", input="Hello")
        assert closed.value.code == "invalid_api_key"
        one = client.with_options(api_key="one")
        assert one.responses.create(model="fake", input="Hello").output_text == REPLY
        engine.fail = ZeroDivisionError()
        with pytest.raises(openai.InternalServerError):
            one.completions.create(model="fake", prompt="x")
        with pytest.raises(openai.APIError):
            list(one.chat.completions.create(model="fake", messages=HELLO, stream=True))
    with serving(state_of(None)) as url, client_of(url) as early:
        with pytest.raises(openai.InternalServerError) as loading:
            early.models.list()
        assert loading.value.status_code == 503
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        with client_of(f"http://127.0.0.1:{nobody.getsockname()[1]}") as lost, pytest.raises(openai.APIConnectionError):
            lost.models.list()


def test_a_client_that_gives_up_ends_its_request() -> None:
    engine = FakeEngine(step_s=60)
    with serving(state_of(engine)) as url, client_of(url, timeout=0.2) as client:
        for ask in (
            lambda: client.chat.completions.create(model="fake", messages=HELLO),
            lambda: client.with_options(timeout=0.1).responses.create(model="fake", input="Hello"),
            lambda: list(client.chat.completions.create(model="fake", messages=HELLO, stream=True)),
        ):
            with pytest.raises(openai.APITimeoutError):
                ask()
            wait_until(lambda: not engine.running)
