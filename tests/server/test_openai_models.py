from typing import Any

import anthropic
import httpx
import openai
import pytest
from fake_engine import FakeEngine, serving, state_of

ASK = [{"role": "user", "content": "q"}]


def test_models(client: openai.OpenAI):
    (model,) = client.models.list().data
    assert (model.id, model.object, model.owned_by, model.max_model_len) == ("fake", "model", "milepost", 256)
    assert client.models.retrieve("fake") == model
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("other")
    assert caught.value.code == "model_not_found"


def test_models_for_clients_of_anthropic(url: str):
    claude = anthropic.Anthropic(base_url=url, api_key="x", max_retries=0)
    (model,) = claude.models.list()
    assert (model.id, model.type, model.display_name, model.max_input_tokens) == ("fake", "model", "fake", 256)
    assert claude.models.retrieve("fake") == model
    assert model.created_at.tzinfo is not None
    with pytest.raises(anthropic.NotFoundError):
        claude.models.retrieve("other")


NEEDS_MODEL: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": ASK},
    "/v1/chat/completions/render": {"messages": ASK},
    "/v1/completions": {"prompt": "q"},
    "/v1/embeddings": {"input": "q"},
    "/v1/responses": {"input": "q"},
    "/v1/messages": {"messages": ASK, "max_tokens": 1},
    "/v1/messages/count_tokens": {"messages": ASK},
}


@pytest.mark.parametrize("path", NEEDS_MODEL)
def test_a_request_names_its_model(http: httpx.Client, path: str) -> None:
    """As in both official APIs. The empty name is any server's."""
    for named in ({}, {"model": None}):
        refused = http.post(path, json=NEEDS_MODEL[path] | named)
        assert refused.status_code == 400
        error = refused.json()["error"]
        assert (error["type"], error["message"][:6]) == ("invalid_request_error", "model:")
        assert error.get("param", "model") == "model"
    assert http.post(path, json=NEEDS_MODEL[path] | {"model": ""}).status_code == 200


@pytest.mark.parametrize(
    ("path", "name"), [("/v1/responses/input_tokens", "input"), ("/tokenize", "prompt"), ("/cache/prefixes", "prompt")]
)
def test_where_the_model_may_be_left_out(http: httpx.Client, path: str, name: str) -> None:
    assert http.post(path, json={name: "q"}).is_success


def test_served_names_replace_the_models_own():
    names = ("big/one", "small")
    with serving(state_of(FakeEngine(), served_model_names=names)) as url:
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0)
        assert [model.id for model in client.models.list().data] == list(names)
        assert client.models.retrieve("big/one").root == "fake"
        for name in names:
            assert client.completions.create(model=name, prompt="x").model == name
        assert client.completions.create(model="", prompt="x").model == "big/one"
        with pytest.raises(openai.NotFoundError):
            client.completions.create(model="fake", prompt="x")
