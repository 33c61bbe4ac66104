"""Connections on which a request was begun and never ended."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from urllib.parse import urlsplit

import httpx
import pytest
import uvicorn
from fake_engine import FakeEngine, running, state_of
from starlette.types import Receive, Scope, Send

from milepost.server import body
from milepost.server.app import create_app
from milepost.server.connection import Connection
from milepost.server.run import listen, url_of

CHAT = {"model": "", "messages": [{"role": "user", "content": "q"}], "max_tokens": 5}


class Hasty(Connection):
    head_seconds = 0.1
    write_seconds = 0.1


@pytest.fixture(scope="module")
def hasty() -> Iterator[str]:
    engine = FakeEngine(step_s=0.06)
    with listen("127.0.0.1", 0) as sock:
        config = uvicorn.Config(create_app(state_of(engine)), log_config=None, lifespan="off", http=Hasty)
        with running(config, sock):
            yield url_of(sock)


def connected(url: str) -> socket.socket:
    sock = socket.create_connection((urlsplit(url).hostname, urlsplit(url).port), timeout=20)
    return sock


def answer(sock: socket.socket) -> bytes:
    """All that comes until the other side closes."""
    parts = []
    while part := sock.recv(4096):
        parts.append(part)
    return b"".join(parts)


@pytest.mark.parametrize("sent", [b"", b"GET /health HT", b"GET /health HTTP/1.1\r\nHost: localhost\r\nA: b"])
def test_half_a_request_is_not_waited_for(hasty: str, sent: bytes):
    with connected(hasty) as sock:
        sock.sendall(sent)
        assert answer(sock) == b""


def test_nor_is_half_of_a_second_one(hasty: str):
    with connected(hasty) as sock:
        sock.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert sock.recv(4096).startswith(b"HTTP/1.1 200")
        sock.sendall(b"GET /hea")
        assert b"HTTP/1.1" not in answer(sock)


def test_an_answer_may_take_its_time(hasty: str):
    with httpx.Client(base_url=hasty, timeout=30) as http:
        for _ in range(3):
            assert http.post("/v1/chat/completions", json=CHAT).status_code == 200
            assert http.post("/v1/chat/completions", json=CHAT | {"stream": True}).text.endswith("[DONE]\n\n")


def test_half_a_body_is_not_waited_for(hasty: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(body, "PIECE_SECONDS", 0.1)
    with connected(hasty) as sock:
        sock.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
        told = b""
        while b"}}" not in told:
            told += sock.recv(4096)
        assert told.startswith(b"HTTP/1.1 408")
        assert b"request_timeout" in told


def test_an_answer_that_nobody_reads_is_given_up():
    ended = threading.Event()

    async def endless(scope: Scope, receive: Receive, send: Send) -> None:
        """Goes on until the client is gone."""
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        leaving = asyncio.ensure_future(receive())
        while not leaving.done():
            await send({"type": "http.response.body", "body": bytes(2**16), "more_body": True})
            await asyncio.sleep(0)
        ended.set()

    with listen("127.0.0.1", 0) as sock:
        config = uvicorn.Config(endless, log_config=None, lifespan="off", http=Hasty)
        with running(config, sock), connected(url_of(sock)) as client:
            client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert ended.wait(20)


def test_an_answer_that_is_read_slowly_is_sent():
    """Whoever takes some of it now and then is there."""
    size = 2**23

    async def long(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"connection", b"close")]})
        for i in range(64):
            await send({"type": "http.response.body", "body": bytes(size // 64), "more_body": i < 63})

    class Patient(Hasty):
        write_seconds = 60.0

    with listen("127.0.0.1", 0) as sock:
        config = uvicorn.Config(long, log_config=None, lifespan="off", http=Patient)
        with running(config, sock), connected(url_of(sock)) as client:
            client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            threading.Event().wait(0.3)
            assert len(answer(client)) > size
