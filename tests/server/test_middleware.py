"""Keys, origins, and what nobody foresaw."""

import httpx
import pytest
from fake_engine import FakeEngine, serving, state_of


def test_key():
    with serving(state_of(FakeEngine(), api_keys=("one", "zwei-ü"))) as url, httpx.Client(base_url=url) as http:
        refused = http.get("/v1/models")
        assert refused.status_code == 401
        assert refused.json()["error"]["code"] == "invalid_api_key"
        assert refused.headers["www-authenticate"] == "Bearer"
        for header in (b"Bearer two", b"Bearer", b"one", b"Basic one", b"Bearer on", b"\xff\xfe"):
            assert http.get("/v1/models", headers={b"Authorization": header}).status_code == 401
        assert http.get("/nowhere").status_code == 401
        assert http.get("/health").status_code == 200
        for header in (b"Bearer one", b"bearer one", "Bearer zwei-ü".encode()):
            assert http.get("/v1/models", headers={b"Authorization": header}).status_code == 200


def test_origins():
    page = "https://page.example"
    state = state_of(FakeEngine(), allowed_origins=(page,), api_keys=("one",))
    asks = {"Origin": page, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    with serving(state) as url, httpx.Client(base_url=url) as http:
        allowed = http.options("/v1/chat/completions", headers=asks)
        assert allowed.status_code == 200
        assert allowed.headers["access-control-allow-origin"] == page
        assert http.get("/v1/models", headers={"Origin": page}).headers["access-control-allow-origin"] == page
        other = http.options("/v1/chat/completions", headers=asks | {"Origin": "https://other.example"})
        assert "access-control-allow-origin" not in other.headers


def test_pages_may_read_what_is_told_in_headers():
    page = {"Origin": "https://page.example"}
    tool, image = {"type": "web_search"}, {"type": "image", "source": {}}
    asks = {"model": "", "messages": [{"role": "user", "content": [image]}], "tools": [tool], "max_tokens": 1, "odd": 1}
    billing = [{"type": "text", "text": "x-anthropic-billing-header: a"}]
    with serving(state_of(FakeEngine(), allowed_origins=(page["Origin"],))) as url:
        chat = httpx.post(f"{url}/v1/chat/completions", json={"model": "", "messages": []}, headers=page).headers
        claude = httpx.post(f"{url}/v1/messages", json=asks | {"system": billing}, headers=page).headers
    exposed = {name.strip().lower() for name in claude["access-control-expose-headers"].split(",")}
    told = {name for name in [*chat, *claude] if name.startswith("x-milepost") or name.endswith("request-id")}
    assert len(told) == 6, told
    assert exposed == told | {"retry-after"}


def test_no_origins_unless_told(http: httpx.Client):
    answer = http.get("/v1/models", headers={"Origin": "https://page.example"})
    assert "access-control-allow-origin" not in answer.headers


def test_defects_stay_inside(caplog: pytest.LogCaptureFixture):
    engine = FakeEngine()

    def broken() -> bytes:
        raise ZeroDivisionError("with the user's secret")

    engine.metrics_text = broken
    with serving(state_of(engine)) as url:
        answer = httpx.get(f"{url}/metrics")
        assert answer.status_code == 500
        assert answer.json()["error"]["type"] == "server_error"
        assert "secret" not in answer.text
        assert "ZeroDivisionError" not in answer.text
        assert httpx.get(f"{url}/health").status_code == 200
    assert "GET /metrics failed: ZeroDivisionError at " in caplog.text
    assert "secret" not in caplog.text
