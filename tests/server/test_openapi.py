"""/openapi.json names every route that there is, and each answer is as it says."""

from __future__ import annotations

import re
from typing import Any

import httpx
import jsonschema
import pytest
from fake_engine import FakeEngine, serving, state_of
from test_keys_of_routes import endpoints

from milepost.server.anthropic_errors import speaks_anthropic
from milepost.server.app import create_app
from milepost.server.openapi import ROUTES, document
from milepost.server.page import is_page

MESSAGES = [{"role": "user", "content": "q"}]
BODIES: dict[str, Any] = {
    "/v1/chat/completions": {"model": "", "messages": MESSAGES},
    "/v1/chat/completions/render": {"model": "", "messages": MESSAGES},
    "/v1/completions": {"model": "", "prompt": "q"},
    "/v1/embeddings": {"model": "", "input": "q"},
    "/v1/responses": {"model": "fake", "input": "q"},
    "/v1/responses/input_tokens": {"input": "q"},
    "/v1/messages": {"model": "", "messages": MESSAGES, "max_tokens": 5},
    "/v1/messages/count_tokens": {"model": "", "messages": MESSAGES},
    "/tokenize": {"prompt": "q"},
    "/detokenize": {"tokens": [65]},
    "/cache/prefixes": {"prompt": "q"},
}


def check(answer: httpx.Response, told: dict[str, Any], method: str, path: str, status: str) -> None:
    kind = answer.headers["content-type"].partition(";")[0]
    schema = told["paths"][path][method]["responses"][status]["content"][kind]["schema"]
    if kind == "application/json":
        jsonschema.validate(answer.json(), {**schema, "components": told["components"]})


def test_every_route_is_told(engine: FakeEngine) -> None:
    found = {
        (method.lower(), re.sub(":[a-z]+}", "}", path))
        for method, path in endpoints(create_app(state_of(engine)))
        if method != "HEAD" and path and not is_page(path) and path != "/v1/models/"
    }
    assert found == set(ROUTES)


@pytest.mark.parametrize(("method", "path"), list(ROUTES))
def test_answers_are_as_they_are_told(http: httpx.Client, method: str, path: str) -> None:
    told = http.get("/openapi.json").json()
    stored = http.post("/v1/responses", json=BODIES["/v1/responses"]).json()["id"]
    pinned = http.post("/cache/prefixes", json={"prompt": "kept", "pin": True}).json()["id"]
    sent = path.replace("{response_id}", stored).replace("{prefix_id}", pinned).replace("{name}", "fake")
    answer = http.request(method, sent, json=BODIES.get(path))
    works = path != "/v1/responses/compact"
    assert answer.is_success is works, answer.text
    check(answer, told, method, path, "200" if works else "4XX")
    if path in BODIES:
        bad: dict[str, Any] = {"model": 5, "messages": 5, "tokens": 5}
        for body in (bad, {**BODIES[path], "thread": {}}) if speaks_anthropic(path) else (bad,):
            wrong = http.post(path, json=body)
            assert wrong.status_code == 400
            check(wrong, told, method, path, "4XX")
    if ROUTES[method, path].streams:
        check(http.post(path, json={**BODIES[path], "stream": True}), told, method, path, "200")


def test_keys_are_told_where_there_are_any() -> None:
    assert "security" not in document(asks_for_key=False)
    with serving(state_of(FakeEngine(), api_keys=("one",))) as url, httpx.Client(base_url=url) as http:
        assert http.get("/openapi.json").status_code == 401
        told = http.get("/openapi.json", headers={"x-api-key": "one"}).json()
    assert told["security"] == [{"bearer": []}, {"x-api-key": []}]
    assert [path for path, item in told["paths"].items() if item.get("get", {}).get("security") == []] == ["/health"]
