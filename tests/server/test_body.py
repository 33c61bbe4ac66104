"""Bad input of every kind: an error of OpenAI's shape, and a server that goes on."""

import copy
import json
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import httpx
import pytest
from fake_engine import FakeEngine, serving, state_of

MESSAGES = [{"role": "system", "content": "s"}, {"role": "user", "content": [{"type": "text", "text": "q"}]}]
VALID: list[tuple[str, dict[str, Any]]] = [
    (
        "/v1/chat/completions",
        {
            "model": "fake",
            "messages": MESSAGES,
            "max_tokens": 5,
            "temperature": 0.5,
            "logprobs": True,
            "top_logprobs": 2,
            "stop": ["x"],
            "logit_bias": {"5": 1},
            "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
            "chat_template_kwargs": {"a": {"b": [1]}},
        },
    ),
    (
        "/v1/chat/completions",
        {"model": "", "messages": MESSAGES, "stream": True, "n": 2, "stream_options": {"include_usage": True}},
    ),
    ("/v1/completions", {"model": "", "prompt": ["a", "b"], "max_tokens": 3, "logprobs": 1, "echo": True, "seed": 3}),
    (
        "/v1/completions",
        {"model": "", "prompt": [1, 2, 3], "stream": True, "stop_token_ids": [4], "top_k": 3, "min_p": 0.1},
    ),
    ("/tokenize", {"messages": MESSAGES, "return_token_strs": True}),
    ("/detokenize", {"tokens": [1, 2, 3]}),
    ("/tokenize", {"prompt": "a", "add_special_tokens": False}),
    (
        "/v1/embeddings",
        {"model": "", "input": ["a", "b"], "dimensions": 2, "encoding_format": "base64", "pooling_type": "MEAN"},
    ),
    ("/v1/embeddings", {"model": "", "input": [[1, 2], [3]], "normalize": False, "explain_cache": True}),
    (
        "/v1/chat/completions/render",
        {
            "model": "",
            "messages": MESSAGES,
            "max_tokens": 5,
            "cache_breakpoints": [2],
            "prompt_cache_options": {"mode": "explicit", "prewarm": True},
        },
    ),
    ("/cache/prefixes", {"messages": MESSAGES, "cache_salt": "s", "pin": True}),
]
ODD: list[Any] = [
    None, True, False, 0, -1, 1.5, 1e308, 2**63, 2**64, -(2**80), 10**400, "", "x", "é" * 300, [], {}, [[]], [None],
    {"a": 1}, [1, "a"], float("nan"), float("inf"), float("-inf"), "\ud800", "\x00", [0] * 300, [{"role": "user"}],
]  # fmt: skip


def assert_well_formed(answer: httpx.Response) -> None:
    """A success, or one error object and nothing that tells of the inside."""
    assert answer.status_code < 500, answer.text
    if answer.status_code == 200:
        if answer.headers["content-type"].startswith("text/event-stream"):
            assert answer.text.endswith("data: [DONE]\n\n")
            assert answer.text.count("data: [DONE]") == 1
            assert '"error"' not in answer.text
        else:
            assert "error" not in answer.json()
        return
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str)
    assert 0 < len(error["message"]) <= 2000
    assert "\n" not in error["message"]
    assert "Traceback" not in answer.text


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"not json",
        b"[]",
        b"5",
        b"null",
        b'"text"',
        b"\xff\xfe",
        b'{"model": "", "messages": [{"role": "user", "content": "\\ud800"}]}',
        b'{"model": "", "messages": [{"role": "user", "content": "q"}], "temperature": NaN}',
        b'{"model": "", "messages": [{"role": "user", "content": "q"}], "temperature": Infinity}',
        b'{"model": "", "messages": [{"role": "user", "content": "q"}], "temperature": 1e999}',
        b'{"model": "", "messages": [{"role": "user", "content": "q"}], "max_tokens": 1' + b"0" * 5000 + b"}",
        b'{"model": "", "messages": ' + b"[" * 100_000,
        b'{"model": "", "messages": ' * 100_000,
        b'{"model": "", "messages": [{"role": "user", "content": "q"}], "tools": ' + b"[" * 150 + b"]" * 150 + b"}",
    ],
    ids=range(16),
)
def test_bad_content(http: httpx.Client, content: bytes):
    answer = http.post("/v1/chat/completions", content=content)
    assert answer.status_code == 400
    assert_well_formed(answer)


def test_content_type_does_not_matter(http: httpx.Client):
    answer = http.post("/detokenize", content=b'{"tokens": [65]}', headers={"content-type": "text/plain"})
    assert answer.json() == {"prompt": "A"}


def test_unknown_routes_and_methods(http: httpx.Client):
    for path in ("/v1", "/docs", "/v1/chat/completions/x"):
        answer = http.post(path, json={})
        assert (answer.status_code, answer.json()["error"]["type"]) == (404, "not_found_error")
        assert_well_formed(answer)
    answer = http.get("/v1/chat/completions")
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
    assert "POST" in answer.json()["error"]["message"]
    assert_well_formed(answer)
    assert http.delete("/v1/models").status_code == 405


@pytest.mark.parametrize(
    ("name", "takes"),
    [("compact", "POST"), ("input_tokens", "POST"), ("compacted", "DELETE, GET"), ("resp_x", "DELETE, GET")],
)
def test_what_is_no_responses_id_takes_none_of_its_methods(http: httpx.Client, name: str, takes: str):
    answer = http.put(f"/v1/responses/{name}")
    assert (answer.status_code, answer.headers["allow"]) == (405, takes)
    for method in ("GET", "DELETE"):
        assert http.request(method, f"/v1/responses/{name}").status_code == (404 if method in takes else 405)


def test_a_body_of_100_mb(http: httpx.Client):
    answer = http.post("/v1/chat/completions", content=bytes(100_000_000))
    assert answer.status_code == 413
    assert_well_formed(answer)
    assert http.get("/health").status_code == 200


@pytest.fixture(scope="module")
def small() -> Iterator[httpx.Client]:
    with serving(state_of(FakeEngine(), max_body_bytes=1000)) as url, httpx.Client(base_url=url) as http:
        yield http


def test_limit_holds_for_what_is_announced_and_for_what_comes(small: httpx.Client):
    def pieces(total: int) -> Iterator[bytes]:
        yield b'{"tokens": [65]}'
        yield b" " * (total - 16)

    for total, status in ((1000, 200), (1001, 413), (5_000_000, 413)):
        for content in (b"".join(pieces(total)), pieces(total)):
            answer = small.post("/detokenize", content=content)
            assert answer.status_code == status
            assert_well_formed(answer)
    assert answer.json()["error"]["code"] == "request_too_large"


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every (container, key) inside a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in list(items):
        yield value, key
        yield from places(inner)


def mutated(rng: random.Random, valid: Sequence[tuple[str, Any]]) -> tuple[str, bytes]:
    path, body = rng.choice(valid)
    body = copy.deepcopy(body)
    for _ in range(rng.choice((0, 1, 1, 1, 2, 4))):
        container, key = rng.choice(list(places(body)) or [(body, "model")])
        kind = rng.randrange(4)
        if kind == 0 and isinstance(container, dict):
            container.pop(key, None)
        elif kind == 1 and isinstance(container, dict):
            container[rng.choice(("stream", "n", "prompt", "tool_choice", "échó", "x" * 500))] = copy.deepcopy(
                rng.choice(ODD)
            )
        else:
            container[key] = copy.deepcopy(rng.choice(ODD))
    content = bytearray(json.dumps(body).encode())
    for _ in range(rng.choice((0, 0, 0, 1, 1, 3))):
        kind, place = rng.randrange(4), rng.randrange(len(content))
        if kind == 0:
            content[place] = rng.randrange(256)
        elif kind == 1:
            del content[place : place + rng.choice((1, 1, 50))]
        elif kind == 2:
            content[place:place] = rng.choice(
                (b"[" * 300, b"9" * 5000, b'{"a":' * 300, b"\x00", b"\\ud83d", b'"', b"e9")
            )
        else:
            content += content[:place]
        content = content or bytearray(b" ")
    return path, bytes(content)


def survive_mutations(
    http: httpx.Client,
    engine: FakeEngine,
    number: int,
    valid: Sequence[tuple[str, Any]],
    check: Callable[[httpx.Response], None],
) -> list[int]:
    """Sends `number` mutated bodies: each answer must pass `check`, and the server go on answering `valid` ones. The
    status of each."""
    rng = random.Random(number)
    statuses = []
    for i in range(number):
        path, content = mutated(rng, valid)
        answer = http.post(path, content=content)
        try:
            check(answer)
        except AssertionError as error:
            raise AssertionError(f"mutation {i}: {path} {content[:2000]!r}") from error
        statuses.append(answer.status_code)
        if i % 100 == 0 or i == number - 1:
            for path, body in valid:
                assert http.post(path, json=body).status_code == 200
    assert {200, 400} <= set(statuses) <= {200, 400, 404}
    assert statuses.count(200) > number / 10
    assert not engine.running
    return statuses


@pytest.mark.parametrize("number", [500, pytest.param(10_000, marks=pytest.mark.full)])
def test_mutated_bodies(http: httpx.Client, engine: FakeEngine, number: int):
    statuses = survive_mutations(http, engine, number, VALID, assert_well_formed)
    assert statuses.count(400) > number / 4
