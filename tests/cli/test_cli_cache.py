"""`milepost cache` against a server."""

from __future__ import annotations

import http.server
import io
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from fake_engine import FakeEngine, serving, state_of

from milepost.cli.main import main

CHAT = {
    "messages": [{"role": "system", "content": "Be brief."}],
    "tools": [{"type": "function", "function": {"name": "f"}}],
}


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
def url(engine: FakeEngine) -> Iterator[str]:
    with serving(state_of(engine)) as url:
        yield url


def test_prewarm_pin_show_and_unpin(
    engine: FakeEngine, url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "system.txt"
    file.write_text("x" * 99)
    assert main(["cache", "prewarm", str(file), "--url", url]) == 0
    first = capsys.readouterr().out
    assert first.endswith(": 100 tokens, of which 0 were known; prompts resume at 96\n")
    assert main(["cache", "prewarm", str(file), "--pin", "--url", f"{url}/v1"]) == 0
    name = first.split(":")[0]
    assert f"pinned: `milepost cache unpin {name}` ends that" in capsys.readouterr().out
    assert main(["cache", "show", "--url", url]) == 0
    shown = capsys.readouterr().out
    for told in (
        "caching:    on, scope global, states kept: dense\n",
        "memory:     68 B of 1000 B (48 B kv, 20 B state), 30 B pinned; 3 B a token, 10 B a recurrent state\n",
        "tokens:     100 asked for, 80 found, 60 resumed\n",
        "states:     0 made, 0 used, 0 thinned, 0 stranded\n",
        f"pinned:     1 prefixes, 100 B of 500 B\n  {name}  100 tokens, 100 B\n",
        "tree:       3 nodes in 1 scopes, 2 not shown\n  tokens 0 to 80: 1 states, 3 hits, 1 users, pinned\n",
    ):
        assert told in shown
    assert main(["cache", "unpin", name, "--url", url]) == 0
    assert (engine.pins, capsys.readouterr().out) == ({}, f"{name} is not pinned any more\n")
    assert main(["cache", "unpin", name, "--url", url]) == 2
    assert capsys.readouterr().err == (
        "error: no prefix of this id is pinned\nhint: GET /cache/prefixes lists them, and so does milepost cache show\n"
    )


def test_a_chat_from_stdin(
    engine: FakeEngine, url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(CHAT)))
    assert main(["cache", "prewarm", "-", "--json", "--url", url]) == 0
    assert json.loads(capsys.readouterr().out)["num_tokens"] == 20
    assert engine.warmed[0][0]["prompt"] == "<system>Be brief.[f]"


def test_a_file_may_ask_for_its_pin(engine: FakeEngine, url: str, tmp_path: Path) -> None:
    file = tmp_path / "pinned.json"
    for asked, args, pinned in ((True, [], 1), (True, ["--no-pin"], 0), (False, ["--pin"], 1), (False, [], 0)):
        engine.pins.clear()
        file.write_text(json.dumps({**CHAT, "pin": asked}))
        assert main(["cache", "prewarm", str(file), *args, "--url", url]) == 0
        assert len(engine.pins) == pinned


def test_as_json(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cache", "show", "--json", "--url", url]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["bytes"]["budget"], told["tree"]["num_nodes"], told["pinned"]["data"]) == (1000, 3, [])


def test_a_key_of_any_letters(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(state_of(FakeEngine(), api_keys=("clé-ключ",))) as url:
        assert main(["cache", "show", "--url", url, "--api-key", "clé-ключ"]) == 0


@contextmanager
def another_server(answer: bytes) -> Iterator[str]:
    """Answers everything with those bytes."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def handle_one_request(self) -> None:
            self.close_connection = True
            while self.rfile.readline().strip():
                pass
            self.wfile.write(answer)

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


OK = b"HTTP/1.1 200 OK\r\n\r\n"
ANSWERS = [OK + b"[]", OK + b"{}", OK + b"<html>", OK + b"[" * 100_000, b"SSH-2.0-OpenSSH_9.6\r\n", b""]


@pytest.mark.parametrize("answer", ANSWERS)
def test_a_server_that_is_none_of_ours(answer: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    with another_server(answer) as url:
        for args in (["cache", "show"], ["cache", "unpin", "x"], ["explain"]):
            assert main([*args, "--url", url]) == 2
            said = capsys.readouterr()
            assert said.out == ""
            assert said.err.startswith(f"error: no Milepost server answers at {url}: ")
            assert said.err.endswith("\nhint: start one with milepost serve\n")
            assert len(said.err.splitlines()) == 2


def test_prewarming_at_a_server_that_is_none_of_ours(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "a.txt"
    file.write_text("x")
    with another_server(OK + b"{}") as url:
        assert main(["cache", "prewarm", str(file), "--url", url]) == 2
    assert "no Milepost server answers" in capsys.readouterr().err


def test_keys(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(state_of(FakeEngine(), api_keys=("one", "two"))) as url:
        assert main(["cache", "show", "--url", url]) == 2
        assert capsys.readouterr().err.endswith("hint: give --api-key\n")
        monkeypatch.setenv("MILEPOST_API_KEY", "one")
        assert main(["cache", "show", "--url", url]) == 0
        assert "1 scopes, 2 not shown, this key alone\n" in capsys.readouterr().out
    with serving(state_of(FakeEngine(), api_keys=("one",), operator_api_key="boss", cache_scope="global")) as url:
        assert main(["cache", "show", "--url", url]) == 0
        assert "tree:       for the operator's key\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["cache"], "error: missing command"),
        (["cache", "show", "--url", "ftp://a"], "error: --url cannot be 'ftp://a'"),
        (["cache", "show", "--url", "http://127.0.0.1:1"], "error: no Milepost server answers at http://127.0.0.1:1"),
        (["cache", "prewarm", "no/such/file"], "error: no file at no/such/file"),
        (["cache", "show", "--url", "http://a b:80"], "error: --url cannot be 'http://a b:80'"),
        (["cache", "show", "--url", "http://[bad"], "error: --url cannot be 'http://[bad'"),
        (["cache", "show", "--url", "http://a:port"], "error: --url cannot be 'http://a:port'"),
        (["cache", "show", "--url", "http://"], "error: --url cannot be 'http://'"),
        (["cache", "show", "--api-key", "a\nb"], "error: --api-key has characters that no header can hold"),
        (["cache", "unpin", "a b"], "error: no prefix has the id 'a b'"),
        (["cache", "unpin", "é"], "error: no prefix has the id 'é'"),
        (["cache", "unpin", ""], "error: no prefix has the id ''"),
        (["cache", "unpin", "a/b"], "error: no prefix has the id 'a/b'"),
    ],
)
def test_wrong_usage(args: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(args) == 2
    assert capsys.readouterr().err.startswith(told)
