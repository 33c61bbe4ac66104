"""Clients that hang up, and streams read together."""

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from urllib.parse import urlsplit

import httpx
import openai
import pytest
from fake_engine import FakeEngine, serving, state_of, wait_until

from milepost.errors import RequestError
from milepost.server.stream import merge, with_pauses

CHAT = {"model": "", "messages": [{"role": "user", "content": "q"}]}
PROMPTS = {"model": "", "prompt": ["a", "b", "c"], "n": 2, "max_tokens": 200}
CLAUDE = CHAT | {"max_tokens": 200}


@pytest.fixture(scope="module")
def endless() -> FakeEngine:
    return FakeEngine(step_s=0.02, endless=True)


@pytest.fixture(scope="module")
def endless_url(endless: FakeEngine) -> Iterator[str]:
    with serving(state_of(endless)) as url:
        yield url


def send(url: str, path: str, body: dict) -> socket.socket:
    """Sends a request and leaves its answer unread."""
    content = json.dumps(body).encode()
    sock = socket.create_connection((urlsplit(url).hostname, urlsplit(url).port))
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(content)}\r\n\r\n"
    sock.sendall(head.encode() + content)
    return sock


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "body"), [("/v1/chat/completions", CHAT), ("/v1/completions", PROMPTS), ("/v1/messages", CLAUDE)]
)
def test_a_client_that_hangs_up_ends_its_request(
    endless: FakeEngine, endless_url: str, path: str, body: dict, stream: bool
):
    num_prompts = len(body.get("prompt", "x"))
    with send(endless_url, path, body | {"stream": stream}) as sock:
        wait_until(lambda: len(endless.running) == num_prompts)
        if stream:
            assert sock.recv(1000).startswith(b"HTTP/1.1 200")
    wait_until(lambda: not endless.running, seconds=2)
    assert httpx.get(f"{endless_url}/health").status_code == 200


def test_a_client_that_leaves_in_the_middle_of_its_body(endless: FakeEngine, endless_url: str):
    asked = len(endless.asked)
    with socket.create_connection((urlsplit(endless_url).hostname, urlsplit(endless_url).port)) as sock:
        sock.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
    assert httpx.get(f"{endless_url}/health").status_code == 200
    assert len(endless.asked) == asked


def test_others_go_on_when_one_leaves(endless: FakeEngine, endless_url: str):
    with httpx.stream(
        "POST", f"{endless_url}/v1/completions", json={"model": "", "prompt": "a", "stream": True}
    ) as stays:
        events = stays.iter_lines()
        next(events)
        with send(endless_url, "/v1/chat/completions", CHAT):
            wait_until(lambda: len(endless.running) == 2)
        assert [line for line in events if line][-1] == "data: [DONE]"
    wait_until(lambda: not endless.running)


async def count(start: int, end: int, closed: list[int], failure: Exception | None = None) -> AsyncGenerator[int, None]:
    try:
        for number in range(start, end):
            await asyncio.sleep(0)
            yield number
        if failure is not None:
            raise failure
    finally:
        closed.append(start)


def test_merge_gives_all_items_in_each_streams_order():
    async def read() -> list[tuple[int, int]]:
        return [item async for item in merge([count(0, 50, []), count(100, 150, []), count(0, 0, [])])]

    items = asyncio.run(read())
    assert len(items) == 100
    assert [number for stream, number in items if stream == 0] == list(range(50))
    assert [number for stream, number in items if stream == 1] == list(range(100, 150))


def test_merge_closes_all_streams_when_one_fails_or_the_reader_leaves():
    async def fail(closed: list[int]) -> None:
        async for _ in merge([count(0, 1000, closed), count(5, 7, closed, ValueError("bad"))]):
            pass

    async def leave(closed: list[int]) -> None:
        async with aclosing(merge([count(0, 1000, closed), count(5, 1000, closed)])) as items:
            await anext(items)
            await asyncio.sleep(0.01)

    closed: list[int] = []
    with pytest.raises(ValueError, match="bad"):
        asyncio.run(fail(closed))
    assert sorted(closed) == [0, 5]
    closed.clear()
    asyncio.run(leave(closed))
    assert sorted(closed) == [0, 5]


def test_pauses_are_told_and_nothing_is_lost():
    async def slow(closed: list[int]) -> AsyncGenerator[int, None]:
        try:
            for number in range(3):
                await asyncio.sleep(0.05 if number == 1 else 0)
                yield number
            raise ValueError("bad")
        finally:
            closed.append(1)

    async def read(seconds: float, closed: list[int], number: int = 99) -> list[int | None]:
        found: list[int | None] = []
        async with aclosing(with_pauses(slow(closed), seconds)) as items:
            with contextlib.suppress(ValueError):
                async for item in items:
                    found.append(item)
                    if len(found) == number:
                        break
        return found

    closed: list[int] = []
    paused = asyncio.run(read(0.01, closed))
    assert paused[:2] == [0, None]
    assert [item for item in paused if item is not None] == [0, 1, 2]
    for never in (0, -1):
        assert asyncio.run(read(never, closed)) == [0, 1, 2]
    assert asyncio.run(read(0.01, closed, number=2)) == [0, None], "left while the next is awaited"
    assert len(closed) == 4


@pytest.mark.parametrize(
    ("path", "asks"), [("/v1/chat/completions", CHAT), ("/v1/completions", {"model": "", "prompt": ["a", "b"]})]
)
def test_a_silent_stream_is_kept_alive(path: str, asks: dict):
    body = asks | {"max_tokens": 2, "stream": True}
    with serving(state_of(FakeEngine(step_s=0.2), sse_ping_interval=0.02)) as url:
        text = httpx.post(f"{url}{path}", json=body, timeout=30).text
        parts = text.split("\n\n")
        assert parts[0] == ": ping", "before the first token"
        first = next(i for i, part in enumerate(parts) if part.startswith("data:"))
        assert ": ping" in parts[first:], "and in gaps"
        assert {part.partition(":")[0] for part in parts} == {"", "data"}
        assert parts[-2:] == ["data: [DONE]", ""]
        quiet = httpx.post(f"{url}{path}", json=body | {"sse_ping_interval": -1}, timeout=30).text
        assert ": ping" not in quiet
        assert quiet.count("data:") == text.count("data:"), "a ping takes no event's place"
        with openai.OpenAI(base_url=f"{url}/v1", api_key="none") as client:
            chat = client.chat.completions.create(model="fake", messages=CHAT["messages"], max_tokens=2, stream=True)
            assert "".join(chunk.choices[0].delta.content or "" for chunk in chat) == "Ca"


def test_a_refusal_after_a_ping_is_an_event():
    engine = FakeEngine(step_s=0.2)
    engine.fail = RequestError("too much", "ask less")
    with serving(state_of(engine, sse_ping_interval=0.02)) as url:
        answer = httpx.post(f"{url}/v1/chat/completions", json=CHAT | {"stream": True}, timeout=30)
        assert answer.status_code == 200
        ping, *_, error, done, _ = answer.text.split("\n\n")
        assert (ping, done) == (": ping", "data: [DONE]")
        assert json.loads(error.removeprefix("data: "))["error"]["type"] == "invalid_request_error"
