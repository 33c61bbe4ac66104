"""Server-sent events, and clients that hang up."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from fastapi import Request
from pydantic_core import to_json
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from milepost.server.errors import describe, error_object, log_failure

T = TypeVar("T")
Item = TypeVar("Item", contravariant=True)

DONE = b"data: [DONE]\n\n"
"""The last event of every stream of OpenAI's, once."""


class ChunkWriter(Protocol[Item]):
    """Turns what the engine says into the chunks of one API. None: nothing has come for a while."""

    def take(self, item: Item | None) -> Iterable[dict[str, Any]]: ...
    def end(self) -> Iterable[dict[str, Any]]: ...


def event(content: dict[str, Any]) -> bytes:
    """One event. JSON holds no line break, so the event holds none."""
    return b"data: " + to_json(content, inf_nan_mode="null") + b"\n\n"


@dataclass(frozen=True)
class Wire:
    """How an API puts a stream: `event` one event, `error` the last one where something failed, of an HTTP status and
    OpenAI's error object; `ping` keeps a silent connection open, where that is no event; `end` comes after all else."""

    event: Callable[[dict[str, Any]], bytes]
    error: Callable[[int, dict[str, Any]], dict[str, Any]]
    ping: bytes = b""
    end: bytes = b""


OPENAI = Wire(event, lambda status, error: error, b": ping\n\n", DONE)


async def until_hangup(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Awaits `work`, and cancels it when the client hangs up (`ClientDisconnect`). The body must have been read."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_hangup(request.receive))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientDisconnect
    finally:
        await _cancel(leaving)
        await _cancel(working)


async def stream_response(
    request: Request,
    items: AsyncGenerator[T, None],
    writer: ChunkWriter[T],
    ping_seconds: float,
    wire: Wire = OPENAI,
) -> EventStream:
    """A stream of `items` as `writer` puts them, and of pings whenever none has come for `ping_seconds`. The first is
    awaited here: a refusal is still a plain 4xx, unless a ping had to come before it."""
    paced = with_pauses(items, ping_seconds)
    try:
        first = await until_hangup(request, _first(paced))
    except BaseException:
        await paced.aclose()
        raise
    return EventStream(_events(first, paced, writer, wire, request.url.path), wire)


class EventStream(Response):
    """Sends events until they end or the client hangs up; then `events` is closed, and with it what feeds it."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[bytes, None], wire: Wire) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._events, self._wire = events, wire

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        sending = asyncio.ensure_future(self._send_events(send))
        leaving = asyncio.ensure_future(_hangup(receive))
        try:
            await asyncio.wait((sending, leaving), return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()
        except asyncio.CancelledError:  # the server stops, and may cancel a second time at the next pause: none before
            sending.cancel()
            error = error_object(503, "the server is shutting down")
            last = self._wire.event(self._wire.error(503, error)) + self._wire.end
            await send({"type": "http.response.body", "body": last, "more_body": False})
            raise
        finally:
            await _cancel(leaving)
            await _cancel(sending)
            await self._events.aclose()

    async def _send_events(self, send: Send) -> None:
        async for part in self._events:
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def merge(streams: list[AsyncGenerator[T, None]]) -> AsyncGenerator[tuple[int, T], None]:
    """Items of all streams as they come, each with its stream's number. One that raises ends all.

    A reader that stops reading stops the streams: at most one item waits.
    """
    queue: asyncio.Queue[tuple[int, T] | Exception | None] = asyncio.Queue(maxsize=1)

    async def pump(number: int, stream: AsyncGenerator[T, None]) -> None:
        try:
            async with contextlib.aclosing(stream):
                async for item in stream:
                    await queue.put((number, item))
            await queue.put(None)
        except Exception as error:
            await queue.put(error)

    pumps = [asyncio.ensure_future(pump(number, stream)) for number, stream in enumerate(streams)]
    running = len(pumps)
    try:
        while running:
            item = await queue.get()
            if isinstance(item, Exception):
                raise item
            if item is None:
                running -= 1
            else:
                yield item
    finally:
        for task in pumps:
            task.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)


async def with_pauses(items: AsyncGenerator[T, None], seconds: float) -> AsyncGenerator[T | None, None]:
    """`items` as they come, and None whenever none has come for `seconds`; 0 or less: never."""
    end = object()
    coming: asyncio.Future[Any] = asyncio.ensure_future(_next(items, end))
    try:
        while True:
            done, _ = await asyncio.wait((coming,), timeout=seconds if seconds > 0 else None)
            if not done:
                yield None
                continue
            item = coming.result()
            if item is end:
                return
            yield item
            coming = asyncio.ensure_future(_next(items, end))
    finally:
        await _cancel(coming)
        await items.aclose()


async def until(stopped: asyncio.Event, items: AsyncGenerator[T, None]) -> AsyncGenerator[T, None]:
    """`items` as they come, until `stopped` is set: then they are closed, also where none has come yet."""
    end = object()
    stopping: asyncio.Future[Any] = asyncio.ensure_future(stopped.wait())
    coming: asyncio.Future[Any] = asyncio.ensure_future(_next(items, end))
    try:
        while True:
            await asyncio.wait((coming, stopping), return_when=asyncio.FIRST_COMPLETED)
            if not coming.done() or coming.result() is end:
                return
            yield coming.result()
            coming = asyncio.ensure_future(_next(items, end))
    finally:
        await _cancel(stopping)
        await _cancel(coming)
        await items.aclose()


async def _events(
    first: T | None, rest: AsyncGenerator[T | None, None], writer: ChunkWriter[T], wire: Wire, what: str
) -> AsyncGenerator[bytes, None]:
    """An error on the way becomes one error event, and then the end."""
    async with contextlib.aclosing(rest):
        try:
            for part in _parts(first, writer, wire):
                yield part
            async for item in rest:
                for part in _parts(item, writer, wire):
                    yield part
            for chunk in writer.end():
                yield wire.event(chunk)
        except Exception as error:
            status, body = describe(error)
            if status >= 500:
                log_failure(error, what)
            yield wire.event(wire.error(status, body))
    if wire.end:
        yield wire.end


def _parts(item: T | None, writer: ChunkWriter[T], wire: Wire) -> Iterator[bytes]:
    yield from map(wire.event, writer.take(item))
    if item is None and wire.ping:
        yield wire.ping


async def _next(items: AsyncGenerator[Any, None], end: object) -> Any:
    return await anext(items, end)


async def _first(items: AsyncGenerator[T, None]) -> T:
    return await anext(items)


async def _hangup(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _cancel(task: asyncio.Future[Any]) -> None:
    """Ends a task and waits until it has cleaned up. What it raised meanwhile is of no interest."""
    task.cancel()
    await asyncio.wait((task,))
    if not task.cancelled():
        task.exception()
