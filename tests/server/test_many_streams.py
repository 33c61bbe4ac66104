"""Many streams of all APIs at once, of which some clients walk away: nobody's fails, and nothing is left behind."""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections.abc import Iterator
from typing import Any

import httpx
import psutil
import pytest
from fake_engine import serving, state_of, wait_until

from milepost.config import EngineConfig
from milepost.engine.async_llm import AsyncLLM
from milepost.server.state import ServerState

NUM_STREAMS = 200
SECONDS = float(os.environ.get("MILEPOST_STREAMS_SECONDS", "600"))
BEGINNINGS = ["", "Tell me a story. " * 10, "The cat sat on the mat and looked at the dog. " * 8]
ENDS = {
    "/v1/chat/completions": ("[DONE]",),
    "/v1/completions": ("[DONE]",),
    "/v1/responses": ("response.completed", "response.incomplete", "response.failed"),
    "/v1/messages": ("message_stop", "error"),
}
"""The events after which nothing comes."""

GROWTH_BYTES = 48 * 2**20
"""Of the process, clients and all, beside the cache's: buffers, and responses that are kept."""


@pytest.fixture(scope="module")
def llm() -> Iterator[AsyncLLM]:
    config = EngineConfig(model="milepost-tiny", kv_cache_memory_bytes=48 * 2**20, max_num_seqs=16, num_threads=1)
    llm = AsyncLLM.from_config(config)
    yield llm
    llm.shutdown()


def request_of(rng: random.Random) -> tuple[str, dict[str, Any]]:
    path = rng.choice(list(ENDS))
    text = rng.choice(BEGINNINGS) + rng.choice(("Once", "A dog", "There was", f"{rng.random()}"))
    length = rng.choice((1, 4, 16, 40))
    body: dict[str, Any] = {"model": "milepost-tiny", "stream": True, "temperature": rng.choice((0, 0.8))}
    if path == "/v1/completions":
        body |= {"prompt": text, "max_tokens": length}
    elif path == "/v1/responses":
        body |= {"input": text, "max_output_tokens": length, "store": rng.random() < 0.1}
    else:
        body |= {"messages": [{"role": "user", "content": text}], "max_tokens": length}
    return path, body


async def one(http: httpx.AsyncClient, rng: random.Random) -> bool:
    """Whether the client stayed to the end."""
    path, body = request_of(rng)
    leaves_after = rng.choice((None, None, 0, 1, 3, 9))
    events: list[str] = []
    async with http.stream("POST", path, json=body) as answer:
        assert answer.status_code == 200, await answer.aread()
        async for line in answer.aiter_lines():
            if line.startswith("data: "):
                data = line.removeprefix("data: ")
                events.append(data if data == "[DONE]" else json.loads(data).get("type", ""))
                assert '"error":{' not in data, data
            if leaves_after is not None and len(events) > leaves_after:
                return False
    assert [event for event in events if event in ENDS[path]] == events[-1:], (path, events)
    assert events[-1] not in ("error", "response.failed")
    return True


async def crowd(llm: AsyncLLM, url: str, seconds: float) -> tuple[int, int, list[int]]:
    """How many clients stayed, how many left, and the process's bytes beside the
    cache's at each tenth of the time."""
    start, counts = asyncio.get_running_loop().time(), [0, 0]
    sizes: list[int] = []

    async def client(http: httpx.AsyncClient, number: int) -> None:
        rng = random.Random(number)
        while True:
            counts[await one(http, rng)] += 1
            passed = asyncio.get_running_loop().time() - start
            if passed * 10 >= seconds * len(sizes) and len(sizes) < 11:
                sizes.append(psutil.Process().memory_info().rss - cache_bytes(llm, "resident"))
            if passed >= seconds:
                return

    # A new connection each: this server of tests soon ends idle ones, which a slow client may just be using again.
    limits = httpx.Limits(max_connections=NUM_STREAMS, max_keepalive_connections=0)
    async with httpx.AsyncClient(base_url=url, timeout=None, limits=limits) as http:
        await asyncio.gather(*(client(http, number) for number in range(NUM_STREAMS)))
    return counts[True], counts[False], sizes


def cache_bytes(llm: AsyncLLM, which: str) -> int:
    return sum(getattr(size, which) for size in llm.cache_snapshot().by_kind.values())


@pytest.mark.parametrize(
    "seconds", [0.0, pytest.param(SECONDS, marks=[pytest.mark.full, pytest.mark.timeout(SECONDS + 600)])]
)
def test_many_streams_with_clients_that_leave(llm: AsyncLLM, seconds: float) -> None:
    state: ServerState = state_of(llm)  # type: ignore[arg-type]
    with serving(state) as url:
        num_stayed, num_left, sizes = asyncio.run(crowd(llm, url, seconds))
        told = f"{num_stayed} stayed, {num_left} left, MiB {[size >> 20 for size in sizes]}"
        print(told)
        assert min(num_stayed, num_left) > NUM_STREAMS / 10, told
        wait_until(lambda: not llm._engine.has_work)
        assert llm.errored is None
        assert llm._engine.scheduler.cache.usage == 0
        assert not llm._streams
        if seconds:
            assert max(sizes[5:]) < sizes[4] + GROWTH_BYTES, told
        with httpx.Client(base_url=url) as http:
            assert http.post("/reset_prefix_cache").json() == {"success": True}
    assert cache_bytes(llm, "used") == 0
