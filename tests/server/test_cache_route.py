"""GET /cache: numbers for the operator."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from fake_engine import FakeEngine, serving, state_of
from real_engine import running_engine

from milepost.server.state import Engine

PROMPT = [i % 90 + 1 for i in range(200)]


def cache_of(engine: Engine, *prompts: list[int], **settings: Any) -> dict[str, Any]:
    """What /cache says after these prompts."""
    headers = {"Authorization": "Bearer one"}
    with serving(state_of(engine, **settings)) as url, httpx.Client(base_url=url, headers=headers, timeout=60) as http:
        for prompt in prompts:
            assert http.post("/v1/completions", json={"prompt": prompt, "max_tokens": 1}).status_code == 200
        told: dict[str, Any] = http.get("/cache").json()
        return told


def test_all_of_it() -> None:
    assert cache_of(FakeEngine()) == {
        "policy": {
            "enabled": True,
            "scope": "global",
            "retention_interval": "dense",
            "grid_tokens": 64,
            "block_tokens": 16,
        },
        "bytes": {
            "budget": 1000,
            "used": 68,
            "resident": 94,
            "available": 940,
            "by_kind": {"kv": {"used": 48, "resident": 64}, "state": {"used": 20, "resident": 30}},
        },
        "known_tokens": 32,
        "checkpoints": 2,
        "counters": {
            "queries": 100,
            "hits": 60,
            "matched": 80,
            "preempted_queries": 0,
            "preempted_hits": 0,
            "evicted_blocks": 0,
            "checkpoints_made": 0,
            "checkpoints_thinned": 0,
            "checkpoints_used": 0,
            "checkpoints_stranded": 0,
            "pins_given_up": 0,
            "resumed_from": {},
            "misses": {},
        },
    }


def test_it_needs_a_key_and_names_the_scope() -> None:
    with serving(state_of(FakeEngine(), api_keys=("one",))) as url:
        assert httpx.get(f"{url}/cache").status_code == 401
    assert cache_of(FakeEngine(), api_keys=("one",))["policy"]["scope"] == "tenant"
    assert cache_of(FakeEngine(), api_keys=("one",), cache_scope="global")["policy"]["scope"] == "global"


def test_of_a_real_engine() -> None:
    with running_engine() as engine:
        empty = cache_of(engine)
        assert (empty["known_tokens"], empty["checkpoints"], empty["bytes"]["used"]) == (0, 0, 0)
        assert empty["bytes"]["budget"] == empty["bytes"]["available"]
        told = cache_of(engine, PROMPT, PROMPT)
    assert (told["known_tokens"], told["checkpoints"]) == (192, 3)
    kinds = told["bytes"]["by_kind"]
    assert kinds["kv"]["used"] > 0
    assert kinds["state"]["used"] > 0
    assert told["bytes"]["used"] == kinds["kv"]["used"] + kinds["state"]["used"] <= told["bytes"]["resident"]
    assert told["bytes"]["resident"] <= told["bytes"]["budget"] == told["bytes"]["available"], "nobody runs"
    counters = told["counters"]
    assert (counters["queries"], counters["hits"], counters["misses"]) == (400, 192, {"no prefix": 1})
    assert sum(counters["resumed_from"].values()) == 1


@pytest.mark.parametrize(("interval", "told"), [(None, "dense"), (0, 0), (128, 128)])
def test_the_retention_in_force(interval: int | None, told: object) -> None:
    with running_engine(prefix_cache_retention_interval=interval) as engine:
        assert cache_of(engine)["policy"]["retention_interval"] == told


def test_switched_off() -> None:
    with running_engine(enable_prefix_caching=False) as engine:
        told = cache_of(engine, PROMPT, PROMPT)
    assert (told["policy"]["enabled"], told["known_tokens"], told["counters"]["hits"]) == (False, 0, 0)
