"""Every route there is asks for a key, once the server has one."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
from fake_engine import FakeEngine, serving, state_of
from fastapi import FastAPI

from milepost.server.app import create_app
from milepost.server.hosts import OPEN_PATHS


def endpoints(app: FastAPI) -> Iterator[tuple[str, str]]:
    """Method and path; a variable of a path stands for itself."""
    waiting = list(app.routes)
    while waiting:
        route = waiting.pop()
        waiting += getattr(getattr(route, "original_router", None), "routes", [])  # newer FastAPI keeps routers whole
        for method in getattr(route, "methods", None) or ():
            yield method, str(getattr(route, "path", ""))


def test_every_route_but_health_needs_a_key() -> None:
    state = state_of(FakeEngine(), api_keys=("one",))
    found = set(endpoints(create_app(state)))
    assert {
        ("POST", "/v1/responses"),
        ("DELETE", "/v1/responses/{response_id:response}"),
        ("GET", "/v1/models"),
    } <= found
    with serving(state) as url, httpx.Client(base_url=url) as http:
        for method, path in sorted(found):
            answer = http.request(method, path, headers={"Authorization": "Bearer other"})
            assert (answer.status_code == 401) is (path not in OPEN_PATHS), f"{method} {path}: {answer.status_code}"
