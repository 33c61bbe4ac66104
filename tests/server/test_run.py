"""Listening, loading, stopping: in processes of their own, since signals end them."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from fake_engine import FakeEngine, state_of, wait_until

from milepost.errors import ConfigError, ModelError
from milepost.server.run import listen, serve, url_of

SERVER = """
import sys, threading, time
sys.path.insert(0, sys.argv[1])
from fake_engine import FakeEngine, state_of
from milepost.server.run import listen, serve, url_of

engine = FakeEngine(step_s=0.05, endless=True)
sock = listen("127.0.0.1", 0)
print(url_of(sock), flush=True)

def load(report):
    for done in range(int(sys.argv[2])):
        report(done, 100)
        time.sleep(0.05)
    return engine

def on_ready():
    print("ready", flush=True)

serve(state_of(None), sock, load, on_ready, grace_seconds=int(sys.argv[3]))
print("stopped", engine.shut_down, len(engine.running), flush=True)
"""
CHAT = {"model": "", "messages": [{"role": "user", "content": "q"}]}


@contextmanager
def process(num_load_steps: int, grace_seconds: int) -> Iterator[tuple[subprocess.Popen[str], str]]:
    here = str(Path(__file__).parent)
    arguments = [sys.executable, "-c", SERVER, here, str(num_load_steps), str(grace_seconds)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(arguments, text=True, **pipes) as child:
        try:
            yield child, line(child)
        finally:
            child.kill()


def line(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    return child.stdout.readline().strip()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_lets_requests_finish(number: signal.Signals):
    with process(0, 30) as (child, url):
        assert line(child) == "ready"
        body = CHAT | {"stream": True, "max_tokens": 20}
        with httpx.stream("POST", f"{url}/v1/chat/completions", json=body) as answer:
            events = answer.iter_lines()
            next(events)
            child.send_signal(number)
            told = [event for event in events if event]
        assert told[-1] == "data: [DONE]"
        assert '"finish_reason":"length"' in told[-2]
        out, err = child.communicate(timeout=20)
        assert out.split() == ["stopped", "True", "0"]
        assert err == ""
        assert child.returncode == 0


def test_requests_that_do_not_finish_are_told():
    with process(0, 1) as (child, url):
        assert line(child) == "ready"
        whole: list[httpx.Response] = []
        asks = threading.Thread(
            target=lambda: whole.append(httpx.post(f"{url}/v1/chat/completions", json=CHAT, timeout=30))
        )
        asks.start()
        other = httpx.stream("POST", f"{url}/v1/messages", json=CHAT | {"stream": True, "max_tokens": 10_000})
        with (
            httpx.stream("POST", f"{url}/v1/chat/completions", json=CHAT | {"stream": True}) as answer,
            other as claude,
        ):
            events = answer.iter_lines()
            next(events)
            claudes = claude.iter_lines()
            next(claudes)
            child.send_signal(signal.SIGTERM)
            *_, error, end = [event for event in events if event]
            *_, last_name, last = [event for event in claudes if event]
        asks.join()
        assert "shutting down" in json.loads(error.removeprefix("data: "))["error"]["message"]
        assert end == "data: [DONE]"
        assert last_name == "event: error"
        assert json.loads(last.removeprefix("data: "))["error"]["type"] == "overloaded_error"
        assert whole[0].status_code == 503
        assert "shutting down" in whole[0].json()["error"]["message"]
        out, err = child.communicate(timeout=20)
        assert out.split() == ["stopped", "True", "0"]
        assert "Traceback" not in err
        assert child.returncode == 0


def test_a_signal_while_loading():
    with process(10_000, 5) as (child, url):
        wait_until(lambda: httpx.get(f"{url}/health").json()["loaded_bytes"] > 2)
        assert httpx.get(f"{url}/v1/models").status_code == 503
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=20)
        assert (out.split()[0], err, child.returncode) == ("stopped", "", 0)


def test_a_load_that_fails_ends_the_server():
    def load(report: object) -> FakeEngine:
        time.sleep(0.05)
        raise ModelError("no such model", "choose another")

    ready: list[int] = []
    with pytest.raises(ModelError, match="no such model"):
        serve(state_of(None), listen("127.0.0.1", 0), load, lambda: ready.append(1))
    assert ready == []


def test_the_server_can_listen_before_torch_is_there():
    code = "import sys; import milepost.server.run; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "False\n"


def test_signal_handlers_are_put_back():
    def stray(number: int, frame: object) -> None:
        """Would end the whole test run if the server let it through."""

    before = {number: signal.signal(number, stray) for number in (signal.SIGINT, signal.SIGTERM)}
    engine = FakeEngine()
    try:
        serve(
            state_of(None), listen("127.0.0.1", 0), lambda report: engine, lambda: os.kill(os.getpid(), signal.SIGTERM)
        )
        assert engine.shut_down
        assert [signal.getsignal(number) for number in before] == [stray, stray]
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_listen():
    with listen("127.0.0.1", 0) as sock:
        assert sock.proto == socket.IPPROTO_TCP
        port = sock.getsockname()[1]
        assert url_of(sock) == f"http://127.0.0.1:{port}"
        with pytest.raises(ConfigError, match=rf"port {port}: Address already in use.*--port"):
            listen("127.0.0.1", port)
    for host, port in (("no-such-host.invalid", 0), ("256.1.1.1", 0), ("x" * 300, 0)):
        with pytest.raises(ConfigError, match="cannot listen"):
            listen(host, port)
