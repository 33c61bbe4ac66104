"""What two looks at a server's counters tell."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from milepost.cli.load import METRICS, Look, lines, read
from milepost.engine.metrics import Metrics

CACHE: dict[str, Any] = {
    "policy": {"grid_tokens": 64},
    "bytes": {
        "budget": 1000,
        "used": 250,
        "pinned": 0,
        "by_kind": {"kv": {"used": 200, "resident": 200}, "state": {"used": 50, "resident": 50}},
    },
    "counters": {
        "queries": 1000,
        "hits": 400,
        "checkpoints_made": 9,
        "checkpoints_used": 5,
        "checkpoints_thinned": 2,
        "checkpoints_stranded": 1,
    },
}


def look(time: float, cache: dict[str, Any] = CACHE, **counts: float) -> Look:
    return Look(time, {**dict.fromkeys(METRICS, 0.0), **counts}, {}, cache)


def test_the_names_are_those_of_the_engine() -> None:
    metrics = Metrics("m")
    metrics.running.set(3)
    metrics.ttft.observe(0.5)
    metrics.ttft.observe(1.5)
    metrics.generation_tokens.inc(7)
    metrics._success.labels("m", "stop").inc(2)
    found = read(4.0, metrics.text().decode(), CACHE)
    assert (found.time, found.counts["running"], found.counts["generated"]) == (4.0, 3, 7)
    assert (found.counts["first_token_s"], found.counts["first_tokens"]) == (2.0, 2)
    assert found.finished == {"stop": 2}


def test_texts_of_others() -> None:
    with pytest.raises(KeyError):
        read(0.0, "up 1\n", CACHE)
    with pytest.raises(ValueError, match=r"."):
        read(0.0, "<html>\n", CACHE)


def test_rates_leave_first_tokens_to_their_prompts() -> None:
    """In two seconds: five prompts of 100 rows together, which give their first tokens, and 16 more, a row each."""
    counters = {**CACHE["counters"], "queries": 1200, "hits": 500}
    before = look(10.0, rows=50, generated=5, first_tokens=1, first_token_s=0.1, gaps=4, gap_s=0.4)
    now = look(12.0, {**CACHE, "counters": counters}, rows=166, generated=26, first_tokens=6, first_token_s=1.35)
    now = replace(now, counts={**now.counts, "gaps": 24, "gap_s": 1.4, "running": 1}, finished={"stop": 4, "length": 1})
    told = dict(lines(before, now))
    assert told == {
        "requests": "1 running, 0 waiting; ended: 1 length, 4 stop",
        "tokens/s": "10.5 written, 50 of prompts computed, 50 reused",
        "TTFT": "250.0 ms on average, now",
        "per token": "50.0 ms on average, now",
        "reused": "42 % of prompt tokens (500 of 1,200), 50 % now",
        "cache": "[#####...............] 250 B of 1000 B, 25 % (200 B kv, 50 B state, 0 B pinned)",
        "states": "9 made, 5 used, 2 thinned, 1 stranded",
    }


def test_an_idle_server() -> None:
    told = dict(lines(look(0.0), look(1.0)))
    assert told["requests"] == "0 running, 0 waiting; ended: none"
    assert told["tokens/s"] == "0.0 written, 0 of prompts computed, 0 reused"
    assert told["TTFT"] == "nothing yet"
    assert told["reused"] == "40 % of prompt tokens (400 of 1,000)"
    before = look(0.0, first_tokens=2, first_token_s=1.0)
    assert dict(lines(before, replace(before, time=1.0)))["TTFT"] == "500.0 ms on average, since the start"


def test_a_server_started_anew_has_no_negative_rates() -> None:
    told = dict(lines(look(0.0, generated=100, rows=500), look(1.0, generated=1, rows=5)))
    assert "-" not in told["tokens/s"]


def test_no_states_without_recurrent_layers() -> None:
    cache = {**CACHE, "policy": {"grid_tokens": None}}
    assert "states" not in dict(lines(look(0.0, cache), look(1.0, cache)))
