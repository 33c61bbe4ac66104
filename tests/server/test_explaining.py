"""The `cache` object of an answer: on request, and from the requester's own words alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from fake_engine import FakeEngine, serving, state_of
from real_engine import running_engine

from milepost.outputs import CacheReport

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
DIVERGED = CacheReport(40, 32, 16, "diverged", 35)


def ask(path: str, **fields: Any) -> dict[str, Any]:
    words = "".join(map(chr, range(64, 104)))
    prompt = {"prompt": list(words.encode())} if path == TEXT else {"messages": [{"role": "user", "content": words}]}
    return {"model": "", **prompt, "max_tokens": 2, **fields}


def chunks(answer: httpx.Response) -> list[dict[str, Any]]:
    events = answer.text.split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    return [json.loads(event.removeprefix("data: ")) for event in events[:-2]]


@pytest.fixture
def diverged(engine: FakeEngine) -> Iterator[None]:
    engine.report = DIVERGED
    yield
    engine.report = None


@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize("asked", [{"explain_cache": True}, {"headers": {"X-Milepost-Cache": "Explain"}}])
@pytest.mark.usefixtures("diverged")
def test_told_when_asked(http: httpx.Client, path: str, asked: dict[str, Any]) -> None:
    headers = asked.get("headers")
    fields = {} if headers else asked
    answer = http.post(path, json=ask(path, **fields), headers=headers).json()
    told = answer["cache"]
    text = told.pop("text")
    assert told == {
        "matched_tokens": 32,
        "resumed_tokens": 16,
        "recomputed_tokens": 16,
        "reason": "diverged",
        "position": 35,
    }
    if path == TEXT:
        assert text == "".join(map(chr, range(64 + 31, 64 + 39))), "four tokens on each side of the place"
    assert "prompt_tokens_details" in answer["usage"]


@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize("usage", [True, False])
@pytest.mark.usefixtures("diverged")
def test_the_last_chunk_of_a_stream_tells(http: httpx.Client, path: str, usage: bool) -> None:
    body = ask(path, explain_cache=True, stream=True, stream_options={"include_usage": usage})
    *others, last = chunks(http.post(path, json=body))
    assert not any("cache" in chunk for chunk in others)
    assert all(chunk["choices"] for chunk in others)
    assert (last["choices"], last["cache"]["position"]) == ([], 35)
    assert ("usage" in last) == usage
    if usage:
        assert last["usage"]["completion_tokens"] == 2


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_not_told_unless_asked(http: httpx.Client, path: str) -> None:
    for fields in ({}, {"explain_cache": None}, {"explain_cache": False}):
        assert "cache" not in http.post(path, json=ask(path, **fields)).json()
        assert not any("cache" in chunk for chunk in chunks(http.post(path, json=ask(path, stream=True, **fields))))


@pytest.mark.parametrize("stream", [False, True])
def test_a_list_for_several_prompts(http: httpx.Client, stream: bool) -> None:
    known, new = list(range(48)), [100 + stream, *range(40)]
    http.post(TEXT, json=ask(TEXT, prompt=known))
    answer = http.post(TEXT, json=ask(TEXT, prompt=[new, known], explain_cache=True, stream=stream))
    told = (chunks(answer)[-1] if stream else answer.json())["cache"]
    assert [one["resumed_tokens"] for one in told] == [0, 48]


@pytest.mark.parametrize("reason", ["state thinned", "evicted", "too short", None])
def test_text_only_where_texts_part(http: httpx.Client, engine: FakeEngine, reason: Any) -> None:
    engine.report = CacheReport(40, 32, 16, reason, None if reason is None else 16)
    try:
        told = http.post(TEXT, json=ask(TEXT, explain_cache=True)).json()["cache"]
    finally:
        engine.report = None
    assert (told["reason"], told["text"]) == (reason, None)


def test_another_header_is_refused(http: httpx.Client) -> None:
    refused = http.post(TEXT, json=ask(TEXT), headers={"X-Milepost-Cache": "everything"})
    assert refused.status_code == 400
    assert "hint" in refused.json()["error"]["message"]
    refused = http.post(TEXT, json=ask(TEXT, explain_cache="everything"))
    assert refused.json()["error"]["param"] == "explain_cache"


def test_over_a_real_model() -> None:
    first, edited = [i % 90 + 1 for i in range(200)], [i % 90 + 1 for i in range(150)] + [5] * 50
    with running_engine() as engine, serving(state_of(engine, api_keys=("one", "two"))) as url:

        def told(prompt: list[int], key: str) -> dict[str, Any]:
            headers = {"Authorization": f"Bearer {key}", "X-Milepost-Cache": "explain"}
            answer = httpx.post(f"{url}{TEXT}", json=ask(TEXT, prompt=prompt), headers=headers, timeout=60).json()
            assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == answer["cache"]["resumed_tokens"]
            return answer["cache"]  # type: ignore[no-any-return]

        assert told(first, "one")["reason"] == "no prefix"
        assert told(edited, "two")["reason"] == "no prefix", "another key's text is not even hinted at"
        found = told(edited, "one")
        assert (found["reason"], found["position"], found["text"]) == ("diverged", 150, None)
        assert (found["matched_tokens"], found["resumed_tokens"], found["recomputed_tokens"]) == (144, 128, 16)
        assert told([1, 2, 3], "one")["reason"] == "too short"


def counters(url: str) -> dict[str, Any]:
    """What the cache counted, checked against what must hold at any time."""
    told: dict[str, Any] = httpx.get(f"{url}/cache").json()["counters"]
    assert told["hits"] <= told["matched"] <= told["queries"]
    assert told["preempted_hits"] <= told["preempted_queries"]
    return told


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("settings", "fields"),
    [
        ({"enable_prefix_caching": False}, {}),
        ({}, {"skip_reading_prefix_cache": True}),
        ({}, {"prompt_logprobs": 0}),
        ({}, {"echo": True, "logprobs": 1}),
    ],
)
def test_a_request_that_does_not_read_says_so_and_is_counted(settings: Any, fields: Any, stream: bool) -> None:
    if stream and "prompt_logprobs" in fields:
        pytest.skip("not streamed")
    prompt = [i % 90 + 1 for i in range(200)]
    body = ask(TEXT, prompt=prompt, explain_cache=True, stream=stream, **fields)
    if stream:
        body["stream_options"] = {"include_usage": True}
    with running_engine(**settings) as engine, serving(state_of(engine)) as url:
        for _ in range(2):
            answer = httpx.post(f"{url}{TEXT}", json=body, timeout=60)
            told = chunks(answer)[-1] if stream else answer.json()
            assert (told["cache"]["reason"], told["cache"]["position"]) == ("reading disabled", 0)
            assert told["usage"]["prompt_tokens_details"]["cached_tokens"] == told["cache"]["resumed_tokens"] == 0
        found = counters(url)
        assert (found["misses"], found["queries"], found["hits"]) == ({"reading disabled": 2}, 0, 0)
        if not settings:
            reader = httpx.post(f"{url}{TEXT}", json=ask(TEXT, prompt=prompt), timeout=60).json()
            assert reader["usage"]["prompt_tokens_details"]["cached_tokens"] == 199, "it left its prompt for others"
            assert (counters(url)["queries"], counters(url)["hits"]) == (200, 199)
        metrics = httpx.get(f"{url}/metrics").text
        assert 'reason="reading disabled"} 2.0' in metrics


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_cached_tokens_are_told_always_and_the_rest_on_request(http: httpx.Client, path: str, stream: bool) -> None:
    words = f"words of {path} {stream} that nobody has sent before"
    prompt = {"prompt": words} if path == TEXT else {"messages": [{"role": "user", "content": words}]}
    options = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    for repeated in (False, True):
        for explain in ({}, {"explain_cache": True}):
            answer = http.post(path, json={"model": "", **prompt, **options, **explain, "max_tokens": 1})
            last = chunks(answer)[-1] if stream else answer.json()
            cached = last["usage"]["prompt_tokens_details"]["cached_tokens"]
            assert isinstance(cached, int)
            assert (cached > 0) == (repeated or bool(explain))
            assert ("cache" in last) == bool(explain)
            if explain:
                assert last["cache"]["resumed_tokens"] == cached


def test_a_refused_or_failed_stream_still_ends_properly(http: httpx.Client, engine: FakeEngine) -> None:
    engine.fail = ZeroDivisionError("with a secret")
    try:
        answer = http.post(TEXT, json=ask(TEXT, stream=True, explain_cache=True))
    finally:
        engine.fail = None
    assert answer.status_code == 500
    assert "secret" not in answer.text
