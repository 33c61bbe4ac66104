"""OpenAI's asynchronous client: each of its requests, one after another and many at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest
from fake_engine import REPLY, FakeEngine, serving, state_of, wait_until
from sdk_script import ASK_JSON, ASK_WEATHER, HELLO, scripted, weather

TOOL = openai.pydantic_function_tool(weather)
ITEM_TOOL = openai.pydantic_responses_function_tool(weather)

Use = Callable[[openai.AsyncOpenAI], Awaitable[None]]


@pytest.fixture(scope="module")
def script() -> Iterator[str]:
    with scripted() as (url, _):
        yield url


@asynccontextmanager
async def client_of(url: str, **settings: Any) -> AsyncIterator[openai.AsyncOpenAI]:
    settings = {"api_key": "x", "max_retries": 0, "timeout": 30, **settings}
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", **settings) as client:
        yield client


def using(url: str, use: Use, **settings: Any) -> None:
    async def main() -> None:
        async with client_of(url, **settings) as client:
            await use(client)

    asyncio.run(main())


def test_chats(script: str) -> None:
    async def use(sdk: openai.AsyncOpenAI) -> None:
        chats = sdk.chat.completions
        whole = await chats.create(model="fake", messages=HELLO)
        assert whole.choices[0].message.content == REPLY
        options: Any = {"include_usage": True}
        chunks = [
            chunk
            async for chunk in await chats.create(model="fake", messages=HELLO, stream=True, stream_options=options)
        ]
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == REPLY
        assert (chunks[-1].choices, chunks[-1].usage.completion_tokens) == ([], len(REPLY.encode()))  # type: ignore[union-attr]
        parsed = await chats.parse(model="fake", messages=ASK_JSON, response_format=weather)
        assert parsed.choices[0].message.parsed == weather(city="Rome")
        async with chats.stream(model="fake", messages=ASK_WEATHER, tools=[TOOL]) as stream:
            kinds = {event.type async for event in stream}
            called = (await stream.get_final_completion()).choices[0].message.tool_calls
        assert "tool_calls.function.arguments.done" in kinds
        assert called is not None
        assert called[0].function.parsed_arguments == weather(city="Paris")
        raw = await chats.with_raw_response.create(model="fake", messages=HELLO)
        assert raw.headers["x-request-id"].startswith("req_")
        async with chats.with_streaming_response.create(model="fake", messages=HELLO, stream=True) as answer:
            assert [line async for line in answer.iter_lines() if line][-1] == "data: [DONE]"

    using(script, use)


def test_completions_embeddings_and_models(script: str) -> None:
    async def use(sdk: openai.AsyncOpenAI) -> None:
        assert (await sdk.completions.create(model="fake", prompt="x", max_tokens=64)).choices[0].text == REPLY
        chunks = [
            chunk async for chunk in await sdk.completions.create(model="fake", prompt="x", max_tokens=64, stream=True)
        ]
        assert "".join(chunk.choices[0].text for chunk in chunks) == REPLY
        vectors = [
            await sdk.embeddings.create(model="fake", input="x", encoding_format=form) for form in ("float", "base64")
        ]
        assert isinstance(vectors[0].data[0].embedding, list)
        assert (await sdk.embeddings.create(model="fake", input="x")).data[0].embedding == pytest.approx(
            vectors[0].data[0].embedding, rel=1e-6
        )
        models = [model async for model in sdk.models.list()]
        assert models == [await sdk.models.retrieve("fake")]

    using(script, use)


def test_responses(script: str) -> None:
    async def use(sdk: openai.AsyncOpenAI) -> None:
        responses = sdk.responses
        first = await responses.create(model="fake", input="Hello")
        assert first.output_text == REPLY
        events = [
            event
            async for event in await responses.create(
                model="fake", input="And?", previous_response_id=first.id, stream=True
            )
        ]
        assert events[-1].type == "response.completed"
        second = events[-1].response
        assert (await responses.retrieve(second.id)).to_dict() == second.to_dict()
        assert (await responses.cancel(second.id)).status == "completed"
        items = [item async for item in responses.input_items.list(second.id, order="asc")]
        assert [item.type for item in items] == ["message"] * 3
        parsed = await responses.parse(model="fake", input=ASK_JSON, text_format=weather)
        assert parsed.output_parsed == weather(city="Rome")
        async with responses.stream(model="fake", input=ASK_WEATHER, tools=[ITEM_TOOL]) as stream:
            kinds = [event.type async for event in stream]
            *_, call = (await stream.get_final_response()).output
        assert "response.function_call_arguments.done" in kinds
        assert call.parsed_arguments == weather(city="Paris")  # type: ignore[union-attr]
        counted = await responses.input_tokens.count(model="fake", input="Hello")
        assert counted.input_tokens == first.usage.input_tokens  # type: ignore[union-attr]
        await responses.delete(first.id)
        with pytest.raises(openai.NotFoundError):
            await responses.retrieve(first.id)

    using(script, use)


def test_a_response_is_cancelled_from_beside() -> None:
    async def use(sdk: openai.AsyncOpenAI) -> None:
        stream = await sdk.responses.create(model="fake", input="q", stream=True)
        response_id = (await anext(stream)).response.id  # type: ignore[union-attr]
        assert (await sdk.responses.cancel(response_id)).status == "cancelled"
        *_, last = [event async for event in stream]
        assert last.type == "response.incomplete"

    with serving(state_of(FakeEngine(step_s=0.02, endless=True))) as url:
        using(url, use)


def test_many_at_once_get_each_its_own(script: str) -> None:
    async def use(sdk: openai.AsyncOpenAI) -> None:
        asked = [HELLO, ASK_JSON] * 8
        answers = await asyncio.gather(*(sdk.chat.completions.create(model="fake", messages=ask) for ask in asked))
        assert [answer.choices[0].message.content for answer in answers] == [REPLY, '{"city": "Rome"}'] * 8
        assert len({answer.id for answer in answers}) == len(asked)

    using(script, use)


def test_errors_and_clients_that_give_up() -> None:
    async def refused(sdk: openai.AsyncOpenAI) -> None:
        with pytest.raises(openai.AuthenticationError):
            await sdk.models.list()

    async def wrong(sdk: openai.AsyncOpenAI) -> None:
        with pytest.raises(openai.BadRequestError):
            await sdk.responses.create(model="fake", input="q", top_p=7)
        with pytest.raises(openai.NotFoundError):
            await sdk.chat.completions.create(model="other", messages=HELLO)
        with pytest.raises(openai.APITimeoutError):
            await sdk.with_options(timeout=0.1).chat.completions.create(model="fake", messages=HELLO)
        await asyncio.to_thread(wait_until, lambda: not engine.running)
        task = asyncio.ensure_future(sdk.chat.completions.create(model="fake", messages=HELLO))
        await asyncio.to_thread(wait_until, lambda: bool(engine.running))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.to_thread(wait_until, lambda: not engine.running)

    engine = FakeEngine(step_s=60)
    with serving(state_of(engine, api_keys=("one",))) as url:
        using(url, refused)
        using(url, wrong, api_key="one")
