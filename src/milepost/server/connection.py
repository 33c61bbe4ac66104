"""A connection that waits for ever neither for a request that was begun and never ended, nor for a client that reads
nothing of its answer."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_SECONDS = 30.0
"""A request's line and headers have this long to arrive, and a new connection to begin one."""


WRITE_SECONDS = 120.0
"""A client that takes nothing of what waits for it for so long is gone. Buffers hold a lot before any waits here."""


class Connection(H11Protocol):
    """uvicorn's, which has a time only for connections that are idle after an answer. Of a body, whoever reads it keeps
    the time (`body.py`)."""

    head_seconds: ClassVar[float] = HEAD_SECONDS
    write_seconds: ClassVar[float] = WRITE_SECONDS

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_head()

    def data_received(self, data: bytes) -> None:
        if self._head is None and not self._answering:
            self._await_head()  # of the next request on this connection
        super().data_received(data)
        if self._answering:
            self._stop_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        self._is_read()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        self._unread = self.loop.call_later(self.write_seconds, self.transport.abort)
        super().pause_writing()

    def resume_writing(self) -> None:
        self._is_read()
        super().resume_writing()

    @property
    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _await_head(self) -> None:
        self._head = self.loop.call_later(self.head_seconds, self._give_up)

    def _stop_waiting(self) -> None:
        if self._head is not None:
            self._head.cancel()
            self._head = None

    def _is_read(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def _give_up(self) -> None:
        self._head = None
        if not self._answering:
            self.timeout_keep_alive_handler()
