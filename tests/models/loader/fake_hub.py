"""A hub on this machine: the few addresses that the hub's client asks for a model's list of files and their bytes."""

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import huggingface_hub
import pytest

SHA = "0123456789abcdef0123456789abcdef01234567"


class FakeHub:
    """Serves `repos[org/name][file] -> bytes`.

    `errors[org/name]` or `errors[org/name/file]` -> (status, X-Error-Code) refuses; `asked` lists method and path.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self.repos: dict[str, Mapping[str, bytes]] = {}
        self.errors: dict[str, tuple[int, str]] = {}
        self.asked: list[str] = []

    def downloads(self) -> list[str]:
        """Files whose bytes were asked for."""
        return sorted(
            path.partition(f"/resolve/{SHA}/")[2] for path in self.asked if "GET" in path and "resolve" in path
        )

    def answer(self, path: str) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body of a request."""
        parts = unquote(urlsplit(path).path).strip("/").split("/")
        if parts[:2] == ["api", "models"]:
            return self._described("/".join(parts[2:4]), parts[4:])
        repo, file = "/".join(parts[:2]), "/".join(parts[4:])
        status, code = self.errors.get(f"{repo}/{file}", (200, ""))
        if status != 200:
            return status, {"X-Error-Code": code, "X-Error-Message": code}, b""
        body = self.repos[repo][file]
        tag = hashlib.sha256(body).hexdigest()
        return 200, {"ETag": f'"{tag}"', "X-Repo-Commit": SHA, "X-Linked-Size": str(len(body))}, body

    def _described(self, repo: str, rest: list[str]) -> tuple[int, dict[str, str], bytes]:
        status, code = self.errors.get(repo, (200, "") if repo in self.repos else (404, "RepoNotFound"))
        if status != 200:
            return status, {"X-Error-Code": code, "X-Error-Message": code}, b"{}"
        files = self.repos[repo]
        if rest[:1] == ["tree"]:
            found: object = [
                {"type": "file", "path": name, "size": len(body), "oid": hashlib.sha1(body).hexdigest()}
                for name, body in files.items()
            ]
        else:
            found = {"id": repo, "sha": SHA, "siblings": [{"rfilename": name} for name in files]}
        return 200, {"Content-Type": "application/json"}, json.dumps(found).encode()


@contextmanager
def fake_hub(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """A running hub, the client pointed at it, and an empty cache."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            hub.asked.append(f"{self.command} {self.path}")
            status, headers, body = hub.answer(self.path)
            start = int((self.headers.get("Range") or "bytes=0-").removeprefix("bytes=").split("-")[0])
            if start:
                status, headers = 206, {**headers, "Content-Range": f"bytes {start}-{len(body) - 1}/{len(body)}"}
                body = body[start:]
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        do_HEAD = do_GET

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub = FakeHub(f"http://127.0.0.1:{server.server_address[1]}")
    point_at(hub.address, cache, monkeypatch)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def point_at(address: str, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the hub's client ask `address` and keep its files in `cache`."""
    constants = huggingface_hub.constants
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(constants, "ENDPOINT", address)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", address + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
