"""E: what the cache does is said out loud."""

from __future__ import annotations

import logging

import pytest
from engines import Budget
from http_wire import HttpWire
from stage import Serve

GRID = 64


@pytest.mark.parametrize(("interval", "named"), [(None, "dense"), (128, "every 128 tokens"), (0, "only there")])
def test_e1_policy_and_sizes_at_start_and_on_request(
    serve: Serve, interval: int | None, named: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "milepost")
    client = serve(interval=interval)
    memory, told = client.wire.engine.scheduler.cache.memory, client.wire.cache()
    assert (told.budget, told.token_bytes) == (memory.limit_bytes, memory.block_bytes // 16)
    assert told.checkpoint_bytes == memory.checkpoint_bytes
    lines = [record.getMessage() for record in caplog.records]
    (policy,) = [line for line in lines if line.startswith("prefix caching: on")]
    (sizes,) = [line for line in lines if line.startswith("memory: ")]
    assert ("a token" in sizes, "a recurrent state" in sizes) == (memory.block_bytes > 0, memory.checkpoint_bytes > 0)
    if client.unit == GRID:
        assert named in policy
        assert f"a grid of {GRID} tokens" in policy
        assert (told.interval, told.grid) == ("dense" if interval is None else interval, GRID)
    else:
        assert "at each 16 tokens" in policy
        assert (told.interval, told.grid) == (None, None)


def test_e2_cached_tokens_are_always_told(serve: Serve) -> None:
    """In every answer, 0 on a miss. All other scenarios stream; here answers come whole too."""
    client = serve()
    prompt = client.text(200)
    assert client.ask(prompt).report.cached == 0
    assert client.resumes(client.ask(prompt).report.cached, 199)
    if isinstance(client.wire, HttpWire):
        body = {"model": "", "max_tokens": 2, "ignore_eos": True}
        for known in (0, 99):
            answer = client.wire.post("/v1/completions", {**body, "prompt": prompt[::-1][:100]}).json()
            details = answer["usage"]["prompt_tokens_details"]
            assert list(details) == ["cached_tokens"]
            assert client.resumes(details["cached_tokens"], known)


def test_e3_a_miss_has_its_reason_and_its_place(serve: Serve) -> None:
    client = serve()
    text = client.text(1000)

    def told(prompt: list[int]) -> tuple[str | None, int | None]:
        report = client.ask(prompt).report
        return report.reason, report.position

    assert told(text) == ("no prefix", 0)
    assert told(text) == (None, None)
    assert told([*text, *client.text(100)])[0] in (None, "diverged"), "after its last known token"
    new = [(token + 1) % 150 for token in text[500:600]]
    assert told(text[:500] + new) == ("diverged", 500)
    assert told([(token + 1) % 150 for token in text[:5]]) == ("too short", 0)


def test_e3_states_thinned_texts_evicted_reading_disabled(serve: Serve) -> None:
    thinned = serve(interval=0)
    text = thinned.text(600)
    thinned.ask(text)
    report = thinned.ask(text[:300] + thinned.text(50)).report
    if thinned.unit == GRID:
        assert (report.reason, report.position, report.resumed) == ("state thinned", 0, 0)
        assert report.recomputed == report.matched == 288
    evicted = serve(budget=Budget(1000, 6), max_num_seqs=1)
    text = evicted.text(600)
    for prompt in (text, *(evicted.text(600) for _ in range(8))):
        evicted.ask(prompt)
    assert evicted.ask(text).report.reason == "evicted"
    off = serve(caching=False)
    off.plenty = False
    for _ in range(2):
        report = off.ask(text).report
        assert (report.reason, report.resumed, report.matched) == ("reading disabled", 0, 0)


def test_e4_what_lacked_a_state_counts_apart(serve: Serve) -> None:
    client = serve(interval=0)
    prefix = client.text(480)
    answers = [client.ask(prefix + client.text(40)) for _ in range(3)]
    told = client.wire.cache()
    assert told.queries == 3 * 520
    assert told.matched == sum(answer.report.matched for answer in answers)
    assert told.hits == sum(answer.resumed for answer in answers)
    assert told.hits <= told.matched <= told.queries
    assert told.misses.get("state thinned", 0) == (1 if client.unit == GRID else 0)
    lines = dict(line.rsplit(" ", 1) for line in client.wire.metrics().splitlines() if not line.startswith("#"))
    counted = {name.partition("{")[0]: float(value) for name, value in lines.items()}
    assert counted["vllm:prefix_cache_queries_total"] == told.queries
    assert counted["vllm:prefix_cache_hits_total"] == told.hits
    assert counted["milepost:prefix_cache_matched_tokens_total"] == told.matched
