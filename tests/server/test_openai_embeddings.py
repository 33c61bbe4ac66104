"""Embeddings through the official client, and what of them a real model says."""

from __future__ import annotations

import base64
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from fake_engine import BOS, FakeEngine, serving, state_of, vector_of
from real_engine import running_engine

from milepost.errors import ConfigError

PATH = "/v1/embeddings"


def unit(values: list[float]) -> list[float]:
    return [value / sum(other * other for other in values) ** 0.5 for value in values]


def test_one_text(client: openai.OpenAI, engine: FakeEngine):
    """The client asks for base64 and decodes it."""
    answer = client.embeddings.create(model="fake", input="héllo")
    (one,) = answer.data
    assert (answer.object, answer.model, one.object, one.index) == ("list", "fake", "embedding", 0)
    assert one.embedding == pytest.approx(unit(vector_of(list(b"o"), "last")), rel=1e-6)
    assert (answer.usage.prompt_tokens, answer.usage.total_tokens) == (7, 7), "with <s>"
    params = engine.asked[-1][1]
    assert (params.max_tokens, params.pooling) == (0, "last")


@pytest.mark.parametrize(
    ("given", "last"),
    [(["ab", "c"], [98, 99]), ([1, 2, 3], [3]), ([[1, 2], [5]], [2, 5]), ([""], [BOS])],
)
def test_lists_and_token_ids(http: httpx.Client, given: Any, last: list[int]):
    answer = http.post(PATH, json={"model": "", "input": given}).json()
    assert [one["index"] for one in answer["data"]] == list(range(len(last)))
    for one, token in zip(answer["data"], last, strict=True):
        assert one["embedding"] == pytest.approx(unit([token, 2, 0]), rel=1e-6)


def test_formats(http: httpx.Client):
    as_floats, as_text = (
        http.post(PATH, json={"model": "", "input": "a", "encoding_format": name}).json()["data"][0]["embedding"]
        for name in ("float", "base64")
    )
    assert np.frombuffer(base64.b64decode(as_text), dtype="<f4").tolist() == as_floats


def test_dimensions_and_length(http: httpx.Client):
    def vector(**fields: Any) -> list[float]:
        return http.post(PATH, json={"model": "", "input": [3], **fields}).json()["data"][0]["embedding"]

    assert vector(normalize=False) == [3, 2, 0]
    assert vector(dimensions=1) == [1], "of length 1 again"
    assert vector(dimensions=2, normalize=False) == [3, 2]
    assert vector(dimensions=3) == vector()


def test_pooling_by_field_and_by_flag(http: httpx.Client, engine: FakeEngine):
    for name in ("mean", "MEAN"):
        answer = http.post(PATH, json={"model": "", "input": [1, 5], "pooling_type": name, "normalize": False})
        assert answer.json()["data"][0]["embedding"] == [3, 2, 0]
    assert not engine.asked[-1][1].reads_prefix_cache
    with serving(state_of(FakeEngine(), pooling="mean")) as url:
        body = {"model": "", "input": [1, 5], "normalize": False}
        assert httpx.post(f"{url}{PATH}", json=body).json()["data"][0]["embedding"] == [3, 2, 0]
        last = httpx.post(f"{url}{PATH}", json=body | {"pooling_type": "LAST"})
        assert last.json()["data"][0]["embedding"] == [5, 2, 0]
    with pytest.raises(ConfigError, match="--pooling cannot be 'cls'"):
        state_of(None, pooling="cls")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "input"),
        ({"input": []}, "input"),
        ({"input": [1, "a"]}, "input"),
        ({"input": {"a": 1}}, "input"),
        ({"input": "a" * 300}, "input"),
        ({"input": "a", "dimensions": 0}, "dimensions"),
        ({"input": "a", "dimensions": 4}, "dimensions"),
        ({"input": "a", "encoding_format": "hex"}, "encoding_format"),
        ({"input": "a", "pooling_type": "cls"}, "pooling_type"),
    ],
)
def test_what_cannot_be(http: httpx.Client, engine: FakeEngine, fields: dict[str, Any], param: str):
    num_asked = len(engine.asked)
    refused = http.post(PATH, json={"model": ""} | fields)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)
    assert len(engine.asked) == num_asked, "nothing is computed for it"


def test_unknown_fields_and_other_models(http: httpx.Client):
    answer = http.post(PATH, json={"model": "", "input": "a", "user": "me", "temperature": 1})
    assert answer.headers["x-milepost-ignored-fields"] == "user, temperature"
    assert http.post(PATH, json={"input": "a", "model": "other"}).status_code == 404


def test_it_waits_in_the_same_queue():
    engine = FakeEngine(step_s=0.5, endless=True)
    with serving(state_of(engine, max_num_queued_reqs=1)) as url:
        body = {"model": "", "prompt": "a", "max_tokens": 200, "stream": True}
        with httpx.stream("POST", f"{url}/v1/completions", json=body) as running:
            lines = running.iter_lines()
            next(lines)
            assert httpx.post(f"{url}{PATH}", json={"model": "", "input": "a"}).status_code == 429


def test_a_real_model_says_what_it_reused():
    prompt = [i % 90 for i in range(200)]
    with running_engine() as engine, serving(state_of(engine)) as url:  # type: ignore[arg-type]

        def asked(**fields: Any) -> dict[str, Any]:
            body = {"model": "", "input": prompt, "explain_cache": True, **fields}
            return httpx.post(f"{url}{PATH}", json=body, timeout=60).json()

        first, second, mean = asked(), asked(), asked(pooling_type="mean")
        cached = [one["usage"]["prompt_tokens_details"]["cached_tokens"] for one in (first, second, mean)]
        assert cached == [0, 199, 0], "all but the last row"
        assert mean["cache"]["reason"] == "reading disabled"
        vectors = [np.array(one["data"][0]["embedding"]) for one in (first, second, mean)]
        assert vectors[0] == pytest.approx(vectors[1], abs=1e-5)
        assert abs(vectors[0] - vectors[2]).max() > 1e-3
        assert [np.linalg.norm(vector) for vector in vectors] == pytest.approx([1, 1, 1])
        assert len(vectors[0]) == engine.hidden_size
        assert "error" in asked(dimensions=engine.hidden_size + 1)
        assert "data" in asked(dimensions=engine.hidden_size)
