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
            assert (
                http.post("/v1/completions", json={"model": "", "prompt": prompt, "max_tokens": 1}).status_code == 200
            )
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
            "per_token": 3,
            "per_checkpoint": 10,
            "used": 68,
            "resident": 94,
            "available": 940,
            "pinned": 30,
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
        "tree": {
            "shows": "all",
            "num_scopes": 1,
            "num_nodes": 3,
            "left_out": 2,
            "nodes": [
                {
                    "node": 0,
                    "parent": None,
                    "scope": 0,
                    "start": 0,
                    "end": 80,
                    "users": 1,
                    "pinned": 1,
                    "hits": 3,
                    "num_bytes": 25,
                    "num_checkpoints": 1,
                    "checkpoints": [{"position": 64, "kind": "end", "hits": 2, "users": 0}],
                }
            ],
        },
    }


def test_it_needs_a_key_and_names_the_scope() -> None:
    with serving(state_of(FakeEngine(), api_keys=("one",))) as url:
        assert httpx.get(f"{url}/cache").status_code == 401
    assert cache_of(FakeEngine(), api_keys=("one",))["policy"]["scope"] == "tenant"
    assert cache_of(FakeEngine(), api_keys=("one",), cache_scope="global")["policy"]["scope"] == "global"


@pytest.mark.parametrize(
    ("settings", "key", "sees"),
    [
        ({}, "", "all"),
        ({"api_keys": ("one", "two")}, "one", "own"),
        ({"api_keys": ("one", "two"), "cache_scope": "global"}, "one", "all"),
        ({"api_keys": ("one",), "operator_api_key": "boss"}, "one", "own"),
        ({"api_keys": ("one",), "operator_api_key": "boss", "cache_scope": "global"}, "one", None),
        ({"api_keys": ("one",), "operator_api_key": "boss"}, "boss", "all"),
        ({"operator_api_key": "boss"}, "boss", "all"),
    ],
)
def test_the_whole_tree_is_for_the_operator(settings: dict[str, Any], key: str, sees: str | None) -> None:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    engine = FakeEngine()
    with serving(state_of(engine, **settings)) as url:
        told = httpx.get(f"{url}/cache", headers=headers).json()
        assert (told.get("tree", {}).get("shows"), told["bytes"]["budget"]) == (sees, 1000)
        assert "tree" not in httpx.get(f"{url}/cache", headers=headers, params={"tree": "0"}).json()
    assert [scope is None for scope in engine.tree_scopes] == {None: [], "all": [True], "own": [False]}[sees]


def test_a_key_sees_its_own_tree_of_a_real_engine() -> None:
    def spans(http: httpx.Client, key: str) -> list[tuple[int, int]]:
        tree = http.get("/cache", headers={"x-api-key": key}).json()["tree"]
        assert tree["num_nodes"] == len(tree["nodes"])
        assert tree["num_scopes"] == len({node["scope"] for node in tree["nodes"]})
        return sorted((node["start"], node["end"]) for node in tree["nodes"])

    settings = {"api_keys": ("one", "two", "three"), "operator_api_key": "boss"}
    with running_engine() as engine, serving(state_of(engine, **settings)) as url, httpx.Client(base_url=url) as http:
        for key, length in (("one", 200), ("two", 100)):
            body = {"model": "", "prompt": PROMPT[:length], "max_tokens": 1}
            assert http.post("/v1/completions", json=body, headers={"x-api-key": key}, timeout=60).status_code == 200
        assert spans(http, "one") == [(0, 192)]
        assert spans(http, "two") == [(0, 96)]
        assert spans(http, "three") == []
        assert spans(http, "boss") == [(0, 96), (0, 192)]


@pytest.mark.parametrize(
    ("asked", "sees"), [("no", False), ("FALSE", False), ("off", False), ("Yes", True), ("1", True)]
)
def test_the_tree_may_be_left_out(asked: str, sees: bool) -> None:
    with serving(state_of(FakeEngine())) as url:
        assert ("tree" in httpx.get(f"{url}/cache", params={"tree": asked}).json()) == sees
        for wrong in ("", "maybe"):
            refused = httpx.get(f"{url}/cache", params={"tree": wrong})
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, "tree")


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
    assert (counters["queries"], counters["hits"], counters["misses"]) == (400, 199, {"no prefix": 1})
    assert sum(counters["resumed_from"].values()) == 1
    (node,) = told["tree"]["nodes"]
    assert (node["start"], node["end"], node["users"], node["hits"], node["pinned"]) == (0, 192, 0, 1, 0)
    assert [(point["position"], point["kind"]) for point in node["checkpoints"]] == [
        (64, "grid"),
        (128, "grid"),
        (192, "end"),
    ]
    num_bytes = 192 * told["bytes"]["per_token"] + 3 * told["bytes"]["per_checkpoint"]
    assert node["num_bytes"] == num_bytes
    assert told["bytes"]["used"] == num_bytes + 16 * told["bytes"]["per_token"], "and the last block of the end"
    assert told["tree"]["left_out"] == 0


@pytest.mark.parametrize(("interval", "told"), [(None, "dense"), (0, 0), (128, 128)])
def test_the_retention_in_force(interval: int | None, told: object) -> None:
    with running_engine(prefix_cache_retention_interval=interval) as engine:
        assert cache_of(engine)["policy"]["retention_interval"] == told


def test_switched_off() -> None:
    with running_engine(enable_prefix_caching=False) as engine:
        told = cache_of(engine, PROMPT, PROMPT)
    assert (told["policy"]["enabled"], told["known_tokens"], told["counters"]["hits"]) == (False, 0, 0)
