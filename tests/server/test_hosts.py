"""Pages of other origins, and names that were made to point here."""

import socket

import httpx
import pytest
from fake_engine import FakeEngine, serving, state_of

CHAT = {"model": "", "messages": [{"role": "user", "content": "q"}]}
PAGE = "https://page.example"


def status(url: str, host: str | None = None, origin: str | None = None, path: str = "/v1/models") -> int:
    headers = {name: value for name, value in (("Host", host), ("Origin", origin)) if value is not None}
    return httpx.get(f"{url}{path}", headers=headers).status_code


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LOCALHOST:8000",
        "localhost.",
        "a.localhost:1",
        "127.0.0.1:9",
        "10.2.3.4",
        "[::1]:8000",
        "[fe80::1]",
    ],
)
def test_names_of_this_server(url: str, host: str):
    assert status(url, host) == 200


def test_this_machines_own_name(url: str):
    assert status(url, f"{socket.gethostname()}:8000") == 200
    assert status(url, f"{socket.gethostname()}.local") == 200


@pytest.mark.parametrize(
    "host",
    ["rebound.example", "rebound.example:8000", "localhost.example", "notlocalhost", "127.0.0.1.example", "[", "", "@"],
)
def test_other_names_are_refused(url: str, host: str):
    assert status(url, host) == 403
    assert status(url, host, path="/health") == 200


def test_a_refusal_says_what_to_do(url: str):
    answer = httpx.post(f"{url}/v1/chat/completions", json=CHAT, headers={"Host": "rebound.example"})
    assert answer.json()["error"]["code"] == "origin_not_allowed"
    assert "--allowed-hosts" in answer.json()["error"]["message"]
    assert "rebound" not in answer.text
    claude = httpx.post(f"{url}/v1/messages", json=CHAT | {"max_tokens": 1}, headers={"Origin": PAGE})
    assert claude.json()["error"]["type"] == "permission_error"
    assert "--allowed-origins" in claude.json()["error"]["message"]


def test_pages_of_other_origins_are_refused(url: str):
    here = url.removeprefix("http://")
    for origin in (
        PAGE,
        "null",
        "http://localhost:1",
        "file://",
        f"app://{here}",
        f"{url}.example",
        "http://127.0.0.1",
    ):
        assert status(url, origin=origin) == 403, origin
        answer = httpx.options(
            f"{url}/v1/chat/completions", headers={"Origin": origin, "Access-Control-Request-Method": "POST"}
        )
        assert answer.status_code == 403
        assert "access-control-allow-origin" not in answer.headers
    assert status(url, origin=url) == 200, "its own page"
    assert status(url, "localhost:8000", "http://localhost:8000") == 200
    assert status(url, "localhost:8000", "http://localhost:8001") == 403


def test_what_the_operator_allows():
    state = state_of(
        FakeEngine(), allowed_hosts=("Milepost.example", "*.lan"), allowed_origins=(PAGE, "app://obsidian")
    )
    with serving(state) as url:
        for host in ("milepost.example:8000", "a.lan", "a.b.lan"):
            assert status(url, host) == 200, host
        for host in ("lan", "b.milepost.example", "xlan"):
            assert status(url, host) == 403, host
        assert status(url, origin=PAGE) == status(url, origin="app://obsidian") == 200
        assert status(url, "milepost.example", "https://milepost.example") == 200
        assert status(url, origin="https://other.example") == 403
    with serving(state_of(FakeEngine(), allowed_hosts=("*",), allowed_origins=("*",))) as url:
        assert status(url, "any.example", PAGE) == 200


def test_methods_and_headers_of_allowed_pages():
    settings = {"allowed_origins": (PAGE,), "allowed_methods": ("GET",), "allowed_headers": ("x-api-key",)}
    with serving(state_of(FakeEngine(), **settings)) as url:

        def asks(method: str, header: str) -> int:
            wanted = {"Access-Control-Request-Method": method, "Access-Control-Request-Headers": header}
            return httpx.options(f"{url}/v1/models", headers={"Origin": PAGE} | wanted).status_code

        assert asks("GET", "x-api-key") == 200
        assert asks("POST", "x-api-key") == asks("GET", "x-other") == 400


def test_a_key_does_not_open_it_to_pages():
    with serving(state_of(FakeEngine(), api_keys=("one",))) as url:
        headers = {"Authorization": "Bearer one"}
        assert httpx.get(f"{url}/v1/models", headers=headers).status_code == 200
        assert httpx.get(f"{url}/v1/models", headers=headers | {"Origin": PAGE}).status_code == 403
