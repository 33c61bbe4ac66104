"""Emptying the cache over HTTP."""

import httpx
from fake_engine import FakeEngine, serving, state_of

PATH = "/reset_prefix_cache"
CHAT = {"model": "", "messages": [{"role": "user", "content": "a question of some length"}], "max_tokens": 1}


def cached(http: httpx.Client) -> int:
    usage = http.post("/v1/chat/completions", json=CHAT).json()["usage"]
    return usage["prompt_tokens_details"]["cached_tokens"]


def test_nothing_is_cached_afterwards():
    with serving(state_of(FakeEngine())) as url, httpx.Client(base_url=url) as http:
        assert [cached(http) > 0 for _ in range(2)] == [False, True]
        answer = http.post(PATH)
        assert (answer.status_code, answer.json()) == (200, {"success": True})
        assert cached(http) == 0


def test_not_while_requests_run():
    engine = FakeEngine()
    with serving(state_of(engine)) as url:
        engine.running.add("a")
        answer = httpx.post(f"{url}{PATH}")
        assert (answer.status_code, answer.json()["error"]["code"]) == (409, "cache_in_use")


def test_with_keys_it_is_the_operators():
    settings = {"api_keys": ("one",), "operator_api_key": "boss", "cache_scope": "global"}
    with serving(state_of(FakeEngine(), **settings)) as url:

        def status(**headers: str) -> int:
            return httpx.post(f"{url}{PATH}", headers=headers).status_code

        assert status() == 401
        assert status(Authorization="Bearer one") == 403
        assert status(Authorization="Bearer boss") == 200
    with serving(state_of(FakeEngine(), api_keys=("one",))) as url:
        assert httpx.post(f"{url}{PATH}", headers={"x-api-key": "one"}).status_code == 403
