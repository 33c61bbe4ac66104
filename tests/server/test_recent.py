"""GET /cache/requests: what each key's own last requests found, and no more of their text than where they parted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
import torch
from fake_engine import FakeEngine, failed_inside, serving, state_of
from real_engine import running_engine

from milepost.outputs import CacheReport, RequestOutput
from milepost.server.recent import MAX_KEPT, Found, Recent
from milepost.server.state import Engine

TEXT = "/v1/completions"
WORDS = "".join(map(chr, range(64, 104)))
DIVERGED = CacheReport(40, 32, 16, "diverged", 35)


@contextmanager
def asked(engine: Engine, key: str = "", **settings: Any) -> Iterator[httpx.Client]:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    with serving(state_of(engine, **settings)) as url, httpx.Client(base_url=url, headers=headers, timeout=60) as http:
        yield http


def send(http: httpx.Client, prompt: Any = WORDS, **fields: Any) -> httpx.Response:
    return http.post(TEXT, json={"model": "", "prompt": prompt, "max_tokens": 2, "add_special_tokens": False, **fields})


def told(http: httpx.Client, **query: Any) -> list[dict[str, Any]]:
    answer = http.get("/cache/requests", params=query)
    assert answer.status_code == 200
    found: list[dict[str, Any]] = answer.json()["requests"]
    return found


@pytest.mark.parametrize("stream", [False, True])
def test_newest_first_with_numbers_reason_and_place(stream: bool) -> None:
    engine = FakeEngine()
    with asked(engine) as http:
        assert told(http) == []
        engine.report = DIVERGED
        first = send(http, stream=stream)
        engine.report = CacheReport(40, 0, 0, "no prefix", 0)
        send(http, stream=stream)
        newer, older = told(http)
    if not stream:
        assert (older["id"], older["created"]) == (first.json()["id"], first.json()["created"])
    assert older["id"].startswith("cmpl-")
    del older["id"], older["created"]
    assert older == {
        "prompt_tokens": 40,
        "matched_tokens": 32,
        "resumed_tokens": 16,
        "recomputed_tokens": 16,
        "reason": "diverged",
        "position": 35,
        "text": WORDS[31:39],
    }
    assert (newer["reason"], newer["text"]) == ("no prefix", None)


def test_each_prompt_of_a_request_is_listed_once() -> None:
    with asked(FakeEngine()) as http:
        name = send(http, ["a", "b"], n=2).json()["id"]
        assert sorted(found["id"] for found in told(http)) == [f"{name}-0", f"{name}-1"]


def test_so_many_as_asked_for() -> None:
    with asked(FakeEngine()) as http:
        for _ in range(25):
            send(http)
        assert [len(told(http)), len(told(http, last=1)), len(told(http, last=MAX_KEPT))] == [20, 1, 25]
        assert len(told(http, last=1, unknown="ignored")) == 1
        for bad in ("0", "-1", str(MAX_KEPT + 1), "many", "", "1.5", "9" * 5000):
            refused = http.get("/cache/requests", params={"last": bad})
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, "last")


@pytest.mark.parametrize("scope", ["tenant", "global"])
def test_a_key_sees_its_own_requests_alone(scope: str) -> None:
    engine = FakeEngine()
    engine.report = DIVERGED
    with asked(engine, "one", api_keys=("one", "two"), cache_scope=scope) as http:
        send(http)
        other = {"Authorization": "Bearer two"}
        assert len(told(http)) == 1
        assert http.get("/cache/requests", headers=other).json() == {"requests": []}
        assert http.get("/cache/requests", headers={"Authorization": ""}).status_code == 401


def test_who_sends_a_salt_leaves_no_text() -> None:
    engine = FakeEngine()
    engine.report = DIVERGED
    with asked(engine) as http:
        send(http, cache_salt="mine")
        assert [(found["reason"], found["text"]) for found in told(http)] == [("diverged", None)]


def test_what_is_kept_is_bounded_for_each_tenant_and_holds_no_prompt() -> None:
    recent = Recent()
    for i in range(MAX_KEPT + 50):
        recent.add(b"busy", Found(str(i), 0, DIVERGED, ()))
    recent.add(b"quiet", Found("only", 0, DIVERGED, ()))
    assert [found.request_id for found in recent.last(b"busy", 1000)] == [
        str(i) for i in reversed(range(50, MAX_KEPT + 50))
    ]
    assert [found.request_id for found in recent.last(b"quiet", 5)] == ["only"], "others do not push it out"
    assert recent.last(b"nobody", 5) == []


def test_a_request_that_failed_inside_is_listed_if_it_is_known_what_it_found() -> None:
    engine = FakeEngine()
    with asked(engine) as http:
        engine.fail = failed_inside()
        assert send(http).status_code == 500
        assert told(http) == []
        engine.fail = failed_inside()
        engine.fail.output = RequestOutput(
            "x", None, [1] * 40, [], True, cache=CacheReport(40, 32, 32, "not finite", 37)
        )
        assert send(http).status_code == 500
        (found,) = told(http)
    assert (found["reason"], found["position"], found["text"]) == ("not finite", 37, None)


def test_over_a_real_model_whose_rows_are_not_finite() -> None:
    bad = 99
    prompt = [*(i % 90 + 1 for i in range(100)), bad, *range(1, 50)]
    with running_engine() as engine, asked(engine) as http:
        weight = engine._engine.runner.model.get_parameter("model.embed_tokens.weight")
        kept = weight[bad].clone()
        try:
            with torch.inference_mode():
                weight[bad] = float("nan")
            for _ in range(2):
                failed = send(http, prompt)
                assert failed.status_code == 500
                assert "not finite from token 100 on" in failed.json()["error"]["message"]
            later, first = told(http)
        finally:
            with torch.inference_mode():
                weight[bad] = kept
        counters = http.get("/cache").json()["counters"]
    assert (first["reason"], first["resumed_tokens"]) == ("no prefix", 0)
    assert (later["reason"], later["position"], later["resumed_tokens"]) == ("not finite", 100, 64)
    assert counters["misses"] == {"no prefix": 1, "not finite": 1}
