from collections.abc import Iterator

import httpx
import openai
import pytest
from fake_engine import FakeEngine, serving, state_of


@pytest.fixture(scope="module")
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture(scope="module")
def url(engine: FakeEngine) -> Iterator[str]:
    with serving(state_of(engine)) as url:
        yield url


@pytest.fixture(scope="module")
def keyed_url(engine: FakeEngine) -> Iterator[str]:
    """Of a server that asks for one of two keys, "one" and "two"."""
    with serving(state_of(engine, api_keys=("one", "two"))) as url:
        yield url


@pytest.fixture(scope="module")
def one(keyed_url: str) -> Iterator[openai.OpenAI]:
    """Whoever has the key "one"."""
    with openai.OpenAI(base_url=f"{keyed_url}/v1", api_key="one", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def http(url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=url, timeout=30) as client:
        yield client


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=30) as client:
        yield client
