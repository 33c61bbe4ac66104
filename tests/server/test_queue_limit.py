"""A bounded queue: what is in flight goes on, what comes beyond is refused at once and may come again."""

import contextlib
import time
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace

import anthropic
import httpx
import openai
import pytest
from fake_engine import FakeEngine, serving, state_of, wait_until
from test_stream import send

from milepost.errors import RequestError
from milepost.server.errors import RETRY_SECONDS
from milepost.server.queue_limit import InFlight, Seats

ASK = [{"role": "user", "content": "Where?"}]
LONG = {"model": "", "prompt": "a", "max_tokens": 200, "stream": True}


@pytest.fixture(scope="module")
def endless() -> FakeEngine:
    return FakeEngine(endless=True)


@pytest.fixture(scope="module")
def narrow(endless: FakeEngine) -> Iterator[str]:
    with serving(state_of(endless, max_num_queued_reqs=2)) as url:
        yield url


@contextlib.contextmanager
def filled(url: str, endless: FakeEngine, body: dict) -> Iterator[Iterator[str]]:
    """One stream that takes all seats, once it runs; it goes on for longer than any test, unless `step_s` is 0."""
    wait_until(lambda: not endless.running)
    endless.step_s = 0.5
    with httpx.stream("POST", f"{url}/v1/completions", json=body) as running:
        lines = running.iter_lines()
        next(lines)
        yield lines
        endless.step_s = 0


def test_seats_are_given_back():
    in_flight = InFlight(3)
    many, late = Seats(in_flight), Seats(in_flight)
    many.take(2)
    late.take(5)
    assert in_flight.num_samples == 7, "let in while seats are free, however many it asks for"
    with pytest.raises(RequestError, match="7 answers in flight"):
        many.take(1)
    late.leave()
    late.leave()
    assert in_flight.num_samples == 2
    many.take(1)
    many.leave()
    assert in_flight.num_samples == 0


@pytest.mark.parametrize("body", [LONG | {"n": 2}, LONG | {"prompt": ["a", "b"]}, LONG | {"prompt": [[1], [2]]}])
def test_the_one_too_many_is_refused_and_the_running_ones_end_well(narrow: str, endless: FakeEngine, body: dict):
    asked = len(endless.asked)
    with filled(narrow, endless, body) as lines:
        running = len(endless.running)
        refused = httpx.post(f"{narrow}/v1/chat/completions", json={"model": "", "messages": ASK})
        assert refused.status_code == 429
        assert int(refused.headers["retry-after"]) > 0
        error = refused.json()["error"]
        assert (error["type"], error["code"]) == ("rate_limit_error", "rate_limit_exceeded")
        assert "--max-num-queued-reqs" in error["message"]
        assert len(endless.asked) == asked + running, "the refused one has reached nobody"
        endless.step_s = 0
        assert [line for line in lines if line][-1] == "data: [DONE]"
    answer = httpx.post(f"{narrow}/v1/chat/completions", json={"model": "", "messages": ASK, "max_tokens": 1})
    assert answer.status_code == 200


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/messages", "/cache/prefixes"])
def test_every_route_that_queues_is_bounded(narrow: str, endless: FakeEngine, path: str):
    body = {"model": "", "max_tokens": 1} | ({"messages": ASK} if path == "/v1/messages" else {"prompt": "a"})
    with filled(narrow, endless, LONG | {"n": 2}):
        refused = httpx.post(f"{narrow}{path}", json=body)
        assert refused.status_code == 429
        assert refused.json()["error"]["type"] == "rate_limit_error"
        for free in ("/health", "/v1/models", "/metrics"):
            assert httpx.get(f"{narrow}{free}").status_code == 200
        count = httpx.post(f"{narrow}/tokenize", json={"prompt": "a"})
        assert count.status_code == 200
    wait_until(lambda: not endless.running)
    assert httpx.post(f"{narrow}{path}", json=body).status_code == 200, "who left has given back the seats"


def test_bad_requests_keep_no_seat(narrow: str, endless: FakeEngine):
    wait_until(lambda: not endless.running)
    for _ in range(4):
        assert httpx.post(f"{narrow}/v1/completions", json={"model": "", "prompt": [[]]}).status_code == 400
        assert httpx.post(f"{narrow}/v1/chat/completions", json={"model": "", "messages": []}).status_code == 400
    assert httpx.post(f"{narrow}/v1/completions", json={"model": "", "prompt": "a", "max_tokens": 1}).status_code == 200


def test_official_clients_know_it(narrow: str, endless: FakeEngine):
    with filled(narrow, endless, LONG | {"n": 2}):
        with (
            openai.OpenAI(base_url=f"{narrow}/v1", api_key="none", max_retries=0) as client,
            pytest.raises(openai.RateLimitError),
        ):
            client.chat.completions.create(model="fake", messages=ASK)
        with (
            anthropic.Anthropic(base_url=narrow, api_key="none", max_retries=0) as client,
            pytest.raises(anthropic.RateLimitError),
        ):
            client.messages.create(model="fake", max_tokens=1, messages=ASK)


@pytest.mark.parametrize("sdk", [openai, anthropic])
def test_official_clients_come_again_when_they_are_told(sdk: ModuleType, monkeypatch: pytest.MonkeyPatch):
    engine = FakeEngine(step_s=60, endless=True)
    waited: list[float] = []

    def wait(seconds: float) -> None:
        """Not in earnest: meanwhile the seat becomes free."""
        waited.append(seconds)
        running.close()
        wait_until(lambda: not engine.running)
        engine.step_s = 0

    with serving(state_of(engine, max_num_queued_reqs=1)) as url:
        monkeypatch.setattr(f"{sdk.__name__}._base_client.time", SimpleNamespace(**vars(time) | {"sleep": wait}))
        running = send(url, "/v1/completions", {"model": "", "prompt": "x", "stream": True})
        wait_until(lambda: bool(engine.running))
        if sdk is openai:
            with openai.OpenAI(base_url=f"{url}/v1", api_key="x", max_retries=1) as client:
                assert client.completions.create(model="fake", prompt="x", max_tokens=3).usage.completion_tokens == 3
        else:
            with anthropic.Anthropic(base_url=url, api_key="x", max_retries=1) as client:
                assert client.messages.create(model="fake", max_tokens=3, messages=ASK).usage.output_tokens == 3
    assert waited == [RETRY_SECONDS]
