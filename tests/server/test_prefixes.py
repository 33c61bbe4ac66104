"""/cache/prefixes: what a client prewarms and pins, for itself."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import httpx
import pytest
from fake_engine import FakeEngine, serving, state_of
from real_engine import running_engine

from milepost.engine.prefixes import PinFor
from milepost.errors import ConfigError
from milepost.server.prefixes import prewarm_at_start
from milepost.server.schemas import PrefixRequest

PROMPT = [i % 90 + 1 for i in range(200)]
SYSTEM = {"role": "system", "content": "Be brief."}
KEYS = {"api_keys": ("one", "two"), "operator_api_key": "boss"}


def client(url: str, key: str = "") -> httpx.Client:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    return httpx.Client(base_url=url, headers=headers, timeout=60)


def pin(http: httpx.Client, **body: Any) -> dict[str, Any]:
    answer = http.post("/cache/prefixes", json={"prompt": PROMPT, "pin": True, **body})
    assert answer.status_code == 200, answer.text
    told: dict[str, Any] = answer.json()
    return told


def listed(http: httpx.Client) -> list[str]:
    return [prefix["id"] for prefix in http.get("/cache/prefixes").json()["data"]]


def cached(http: httpx.Client, **body: Any) -> int:
    answer = http.post("/v1/completions", json={"model": "", "prompt": [*PROMPT, 5], "max_tokens": 1, **body})
    return int(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"])


def test_prewarm_pin_list_and_unpin_on_a_real_model() -> None:
    with running_engine() as engine, serving(state_of(engine)) as url, client(url) as http:
        warm = http.post("/cache/prefixes", json={"prompt": PROMPT}).json()
        name = warm.pop("id")
        assert warm == {
            "object": "cache.prefix",
            "num_tokens": 200,
            "num_cached_tokens": 0,
            "num_resident_tokens": 192,
            "pinned": False,
        }
        assert listed(http) == []
        assert cached(http) == 200
        again = pin(http)
        assert (again["id"], again["num_cached_tokens"], again["pinned"]) == (name, 199, True)
        told = http.get("/cache/prefixes").json()
        (prefix,) = told["data"]
        assert {**prefix, "num_bytes": 0} == {
            "object": "cache.prefix",
            "id": name,
            "num_tokens": 200,
            "num_bytes": 0,
            "pinned": True,
        }
        cache = http.get("/cache").json()["bytes"]
        assert told["pinned_bytes"] == prefix["num_bytes"] == cache["pinned"] > 0
        assert told["max_pinned_bytes"] == cache["budget"] // 2
        assert http.delete(f"/cache/prefixes/{name}").json() == {"id": name, "object": "cache.prefix", "deleted": True}
        gone = http.delete(f"/cache/prefixes/{name}")
        assert (gone.status_code, gone.json()["error"]["code"]) == (404, "prefix_not_found")
        assert http.get("/cache").json()["bytes"]["pinned"] == 0


def test_a_request_for_no_tokens_prewarms_too() -> None:
    with running_engine() as engine, serving(state_of(engine)) as url, client(url) as http:
        answer = http.post("/v1/completions", json={"model": "", "prompt": PROMPT, "max_tokens": 0}).json()
        assert (answer["choices"][0]["text"], answer["choices"][0]["finish_reason"]) == ("", "length")
        assert (answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"]) == (200, 0)
        assert cached(http) == 200


def test_keys_have_pins_of_their_own_and_the_operator_sees_all() -> None:
    with running_engine() as engine, serving(state_of(engine, **KEYS)) as url:
        one, two, boss = (client(url, key) for key in ("one", "two", "boss"))
        mine, theirs, salted = pin(one)["id"], pin(two)["id"], pin(one, cache_salt="salt")["id"]
        assert len({mine, theirs, salted}) == 3
        assert (listed(one), listed(two), listed(boss)) == ([mine, salted], [theirs], [mine, theirs, salted])
        assert (cached(one), cached(two), cached(boss), cached(one, cache_salt="salt")) == (200, 200, 0, 200)
        assert two.delete(f"/cache/prefixes/{mine}").status_code == 404
        assert boss.delete(f"/cache/prefixes/{mine}").status_code == 200
        limits = [http.get("/cache/prefixes").json()["max_pinned_bytes"] for http in (one, boss)]
        assert limits[0] == limits[1] // 3


def test_no_key_pins_more_than_its_part() -> None:
    with running_engine(1_000_000) as engine, serving(state_of(engine, **KEYS)) as url, client(url, "one") as http:
        taken = 0
        while (answer := http.post("/cache/prefixes", json={"prompt": [taken, *PROMPT], "pin": True})).is_success:
            taken += 1
        assert taken > 0
        error = answer.json()["error"]
        assert (answer.status_code, error["code"], error["param"]) == (409, "pin_limit_exceeded", "pin")
        assert "hint: unpin one" in error["message"]
        told = http.get("/cache/prefixes").json()
        assert (
            told["max_pinned_bytes"] - told["data"][0]["num_bytes"] < told["pinned_bytes"] <= told["max_pinned_bytes"]
        )
        assert pin(client(url, "two"))["pinned"], "another key's part is its own"


def test_messages_begin_a_chat() -> None:
    engine = FakeEngine()
    tools = [{"type": "function", "function": {"name": "look"}}]
    with serving(state_of(engine)) as url, client(url) as http:
        for body in ({}, {"add_generation_prompt": None}, {"add_generation_prompt": True}):
            answer = http.post("/cache/prefixes", json={"messages": [SYSTEM], "tools": tools, **body})
            assert answer.status_code == 200
    texts = [prompt["prompt"] for prompt, _, _ in engine.warmed]
    assert texts == ["<system>Be brief.[look]", "<system>Be brief.[look]", "<system>Be brief.[look]<assistant>"]
    assert [asked for _, asked, _ in engine.warmed] == [False] * 3


REFUSED = [
    ({}, 400, "prompt"),
    ({"prompt": "a", "messages": [SYSTEM]}, 400, "prompt"),
    ({"prompt": ["a", "b"]}, 400, "prompt"),
    ({"prompt": 5}, 400, "prompt"),
    ({"prompt": []}, 400, "prompt"),
    ({"prompt": [1] * 256}, 400, "prompt"),
    ({"messages": []}, 400, "messages"),
    ({"prompt": "a", "pin": "often"}, 400, "pin"),
    ({"prompt": "a", "model": "another"}, 404, "model"),
]


@pytest.mark.parametrize(("body", "status", "param"), REFUSED)
def test_refused(body: dict[str, Any], status: int, param: str) -> None:
    with serving(state_of(FakeEngine())) as url, client(url) as http:
        answer = http.post("/cache/prefixes", json=body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (status, param)


def test_a_key_is_asked_for() -> None:
    with serving(state_of(FakeEngine(), api_keys=("one",))) as url, client(url) as http:
        for answer in (
            http.post("/cache/prefixes", json={}),
            http.get("/cache/prefixes"),
            http.delete("/cache/prefixes/a"),
        ):
            assert answer.status_code == 401


def test_another_method_is_told_all_that_the_path_takes() -> None:
    with serving(state_of(FakeEngine())) as url, client(url) as http:
        for path, takes in (("/cache/prefixes", "GET, POST"), ("/cache/prefixes/a", "DELETE"), ("/cache", "GET")):
            answer = http.put(path)
            assert (answer.status_code, answer.headers["Allow"]) == (405, takes)
            assert f"it takes {takes}" in answer.json()["error"]["message"]


def test_caching_switched_off() -> None:
    with running_engine(enable_prefix_caching=False) as engine, serving(state_of(engine)) as url, client(url) as http:
        answer = http.post("/cache/prefixes", json={"prompt": PROMPT})
        assert answer.status_code == 400
        assert "prefix caching is off" in answer.json()["error"]["message"]


def test_keys_that_share_one_cache_have_pins_of_their_own() -> None:
    settings = {**KEYS, "cache_scope": "global"}
    with running_engine() as engine, serving(state_of(engine, **settings)) as url:
        one, two, boss = (client(url, key) for key in ("one", "two", "boss"))
        mine = pin(one)["id"]
        theirs = pin(two, prompt=[7, *PROMPT])["id"]
        assert (listed(one), listed(two), listed(boss)) == ([mine], [theirs], [mine, theirs])
        assert cached(two) == 200, "what is pinned is shared"
        assert two.delete(f"/cache/prefixes/{mine}").status_code == 404
        limits = [http.get("/cache/prefixes").json()["max_pinned_bytes"] for http in (one, boss)]
        assert limits[0] == limits[1] // 3
        assert boss.delete(f"/cache/prefixes/{mine}").status_code == 200


def test_without_an_operator_no_key_unpins_what_another_pinned() -> None:
    body = PrefixRequest.model_validate({"prompt": [9, *PROMPT]})
    with running_engine() as engine:
        state = state_of(engine, api_keys=("one", "two"), cache_scope="global")
        asyncio.run(prewarm_at_start(engine, state, [("a file", body)]))
        (prewarmed,) = asyncio.run(engine.pinned_prefixes())
        with serving(state) as url:
            one, two = client(url, "one"), client(url, "two")
            mine = pin(one)["id"]
            assert (listed(one), listed(two)) == ([mine], [])
            for name in (mine, prewarmed.id):
                assert two.delete(f"/cache/prefixes/{name}").status_code == 404


def test_a_clients_breakpoints_count_in_chats_too() -> None:
    engine = FakeEngine()
    marked = {**SYSTEM, "cache_control": {"type": "ephemeral"}}
    with serving(state_of(engine)) as url, client(url) as http:
        body = {"model": "", "messages": [SYSTEM, {"role": "user", "content": "Hi"}], "cache_breakpoints": [4, 9]}
        assert http.post("/cache/prefixes", json=body).is_success
        assert http.post("/cache/prefixes", json={**body, "messages": [marked]}).is_success
        refused = http.post("/cache/prefixes", json={**body, "cache_breakpoints": "often"})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "cache_breakpoints")
    plain, both = (prompt["places"] for prompt, _, _ in engine.warmed)
    assert plain.breakpoints == (4, 9)
    assert plain.boundaries
    assert both.breakpoints == (4, 9, len("<system>Be brief."))


# At the start


def test_the_operators_prefixes_are_pinned_for_every_key(caplog: pytest.LogCaptureFixture) -> None:
    engine = FakeEngine()
    body = PrefixRequest.model_validate({"messages": [SYSTEM]})
    for settings, scopes in (({}, 1), (KEYS, 3)):
        engine.warmed.clear()
        state = state_of(engine, **settings)
        with caplog.at_level(logging.INFO):
            caplog.clear()
            asyncio.run(prewarm_at_start(engine, state, [("system.json", body)]))
        assert len({scope for _, _, scope in engine.warmed}) == scopes
        owners = [scope if settings else "" for _, _, scope in engine.warmed]
        assert [pin for _, pin, _ in engine.warmed] == [PinFor(owner, scopes) for owner in owners]
        (line,) = caplog.messages
        assert line.startswith("prewarm: system.json: 17 tokens computed and pinned")
        assert (f"for each of {scopes} keys" in line) == (scopes > 1)
        assert "Be brief" not in line


def test_a_key_finds_what_was_prewarmed_at_the_start() -> None:
    body = PrefixRequest.model_validate({"prompt": PROMPT})
    with running_engine() as engine:
        state = state_of(engine, **KEYS)
        asyncio.run(prewarm_at_start(engine, state, [("a file", body)]))
        with serving(state) as url:
            assert [cached(client(url, key)) for key in ("one", "two", "boss")] == [200] * 3
            assert len(listed(client(url, "one"))) == 1


def test_what_cannot_be_prewarmed_is_told() -> None:
    body = PrefixRequest.model_validate({"prompt": [7] * 250})
    with pytest.raises(ConfigError, match="--prewarm a file: pinning is too much") as told:
        asyncio.run(prewarm_at_start(engine := FakeEngine(), state_of(engine), [("a file", body)]))
    assert "--kv-cache-memory-bytes" in told.value.hint
    assert "unpin" not in told.value.hint, "no server runs yet"
    other = PrefixRequest.model_validate({"prompt": [7], "model": "another"})
    with pytest.raises(ConfigError, match="--prewarm a file: The model `another` does not exist"):
        asyncio.run(prewarm_at_start(engine, state_of(None), [("a file", other)]))


def test_what_is_prewarmed_for_a_salt_is_found_with_it() -> None:
    body = PrefixRequest.model_validate({"prompt": PROMPT, "cache_salt": "salt"})
    with running_engine() as engine:
        state = state_of(engine, **KEYS)
        asyncio.run(prewarm_at_start(engine, state, [("a file", body)]))
        with serving(state) as url:
            http = client(url, "one")
            assert (cached(http), cached(http, cache_salt="salt"), len(listed(http))) == (0, 200, 1)


def test_where_all_share_the_operators_prefix_is_nobodys() -> None:
    engine = FakeEngine()
    state = state_of(engine, **KEYS, cache_scope="global")
    asyncio.run(prewarm_at_start(engine, state, [("a file", PrefixRequest.model_validate({"prompt": [7]}))]))
    assert [pin for _, pin, _ in engine.warmed] == [PinFor("", 1)]
