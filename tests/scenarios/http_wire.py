"""HTTP: POST /v1/completions on a real socket, every answer as a stream of chunks."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import ExitStack
from typing import Any

import httpx
from client import Answer, Ask, CacheNumbers, Failed, Refused, Report
from engines import Watch
from fake_engine import serving

from milepost.engine.async_llm import AsyncLLM
from milepost.engine.engine import Engine
from milepost.server.state import ServerSettings, ServerState

KEYS = ("one", "two")
NUM_LOGPROBS = 5
PATIENCE = 120.0
"""Seconds after which something hangs."""


class HttpWire:
    """A server with a key for each of `KEYS`, and its clients: an event loop in a thread of its own."""

    over = "http"

    def __init__(self, engine: Engine, watch: Watch) -> None:
        self.engine, self._watch, self._stack = engine, watch, ExitStack()
        behind = AsyncLLM(engine)
        self._stack.callback(behind.shutdown)
        state = ServerState(ServerSettings(api_keys=KEYS))
        state.ready(behind)
        self.url = self._stack.enter_context(serving(state))
        self.loop = asyncio.new_event_loop()
        thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        thread.start()
        self._stack.callback(thread.join, timeout=10)
        self._stack.callback(self.loop.call_soon_threadsafe, self.loop.stop)
        self.http = httpx.AsyncClient(base_url=self.url, timeout=PATIENCE)
        self._stack.callback(lambda: self._do(self.http.aclose()))

    def begin(self, ask: Ask) -> HttpPending:
        return HttpPending(self, ask)

    def let_run(self, num_steps: int) -> None:
        goal = self._watch.num_steps + num_steps
        with self._watch.changed:
            self._watch.changed.wait_for(
                lambda: self._watch.num_steps >= goal or not self.engine.has_work, timeout=PATIENCE
            )

    def get(self, path: str) -> httpx.Response:
        return self._do(self.http.get(path, headers={"Authorization": f"Bearer {KEYS[0]}"}))  # type: ignore[no-any-return]

    def post(self, path: str, body: Mapping[str, Any]) -> httpx.Response:
        headers = {"Authorization": f"Bearer {KEYS[0]}"}
        return self._do(self.http.post(path, json=body, headers=headers))  # type: ignore[no-any-return]

    def cache(self) -> CacheNumbers:
        told = self.get("/cache").json()
        sizes, counters = told["bytes"], told["counters"]
        return CacheNumbers(
            interval=told["policy"]["retention_interval"],
            grid=told["policy"]["grid_tokens"],
            token_bytes=sizes["per_token"],
            checkpoint_bytes=sizes["per_checkpoint"],
            budget=sizes["budget"],
            used=sizes["used"],
            resident=sizes["resident"],
            kv_used=sizes["by_kind"]["kv"]["used"],
            state_used=sizes["by_kind"]["state"]["used"],
            checkpoints=told["checkpoints"],
            queries=counters["queries"],
            matched=counters["matched"],
            hits=counters["hits"],
            misses=counters["misses"],
        )

    def metrics(self) -> str:
        return self.get("/metrics").text

    def close(self) -> None:
        self._stack.close()

    def _do(self, doing: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(doing, self.loop).result(PATIENCE)


class HttpPending:
    def __init__(self, wire: HttpWire, ask: Ask) -> None:
        self._ask = ask
        self._samples = [Sample() for _ in range(ask.num_samples)]
        self._usage: dict[str, Any] = {}
        self._report: dict[str, Any] = {}
        self._changed = threading.Condition()
        self._future: Future[None] = asyncio.run_coroutine_threadsafe(self._read(wire.http), wire.loop)
        self._future.add_done_callback(lambda _: self._tell())

    @property
    def tokens(self) -> list[int]:
        return list(self._samples[0].tokens)

    def wait(self, num_tokens: int) -> None:
        with self._changed:
            here = self._changed.wait_for(
                lambda: len(self._samples[0].tokens) >= num_tokens or self._future.done(), timeout=PATIENCE
            )
        assert here, "waited in vain"

    def leave(self) -> None:
        self._future.cancel()

    def finish(self) -> list[Answer]:
        self._future.result(PATIENCE)
        told = self._report
        report = Report(
            cached=self._usage["prompt_tokens_details"]["cached_tokens"],
            matched=told["matched_tokens"],
            resumed=told["resumed_tokens"],
            recomputed=told["recomputed_tokens"],
            reason=told["reason"],
            position=told["position"],
        )
        return [Answer(self._ask, i, one.tokens, one.logprobs, report) for i, one in enumerate(self._samples)]

    async def _read(self, http: httpx.AsyncClient) -> None:
        headers = {"Authorization": f"Bearer {self._ask.who}", "X-Milepost-Cache": "explain"}
        async with http.stream("POST", "/v1/completions", json=body_of(self._ask), headers=headers) as response:
            if response.status_code != 200:
                await response.aread()
                error = Refused if response.status_code < 500 else Failed
                raise error(response.json()["error"]["message"])
            async for line in response.aiter_lines():
                if line.startswith("data: {"):
                    self._take(json.loads(line.removeprefix("data: ")))
                    self._tell()

    def _take(self, chunk: dict[str, Any]) -> None:
        if "error" in chunk:
            raise Failed(chunk["error"]["message"])
        for choice in chunk["choices"]:
            self._samples[choice["index"]].take(choice["logprobs"])
        self._usage = chunk.get("usage") or self._usage
        self._report = chunk.get("cache") or self._report

    def _tell(self) -> None:
        with self._changed:
            self._changed.notify_all()


class Sample:
    """Grows chunk by chunk."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.logprobs: list[dict[int, float]] = []

    def take(self, told: dict[str, Any]) -> None:
        self.tokens += map(_id_of, told["tokens"])
        self.logprobs += [{_id_of(name): one for name, one in top.items()} for top in told["top_logprobs"]]


def body_of(ask: Ask) -> dict[str, Any]:
    return {
        "model": "",
        "prompt": ask.prompt,
        "max_tokens": ask.num_tokens,
        "n": ask.num_samples,
        "temperature": ask.temperature,
        "seed": ask.seed,
        "cache_salt": ask.salt,
        "cache_breakpoints": ask.breakpoints,
        "logprobs": NUM_LOGPROBS,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def _id_of(name: str) -> int:
    """Without a tokenizer a token's text is `token_id:7`."""
    return int(name.removeprefix("token_id:"))
