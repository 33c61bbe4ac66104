"""Images in messages: the model is told that it cannot see them, and the client that they were not shown."""

from __future__ import annotations

from typing import Any

import httpx
import openai
import pytest
from fake_engine import FakeEngine, serving, state_of

from milepost.server.images import UNSEEN

DATA = "data:image/png;base64,iVBORw0KGgo="
CHAT_PART = {"type": "image_url", "image_url": {"url": DATA}}
BLOCK = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}
ITEM_PART = {"type": "input_image", "image_url": DATA, "detail": "low"}
RESULT = {"type": "tool_result", "tool_use_id": "c", "content": [BLOCK]}


def said(*parts: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"role": "user", "content": list(parts)}]


CHAT: dict[str, Any] = {"model": "", "messages": said({"type": "text", "text": "What?"}, CHAT_PART)}
CLAUDE: dict[str, Any] = {"model": "", "messages": said({"type": "text", "text": "What?"}, BLOCK), "max_tokens": 3}
SHOWN: dict[str, Any] = {"model": "", "messages": said(RESULT, {"type": "text", "text": "What?"}), "max_tokens": 3}
ITEMS: dict[str, Any] = {"model": "fake", "input": said({"type": "input_text", "text": "What?"}, ITEM_PART)}


@pytest.mark.parametrize(
    ("path", "body", "kind"),
    [
        ("/v1/chat/completions", CHAT, "image_url"),
        ("/v1/chat/completions", CHAT | {"stream": True}, "image_url"),
        ("/v1/chat/completions/render", CHAT, "image_url"),
        ("/tokenize", CHAT, "image_url"),
        ("/cache/prefixes", CHAT, "image_url"),
        ("/v1/messages", CLAUDE, "image"),
        ("/v1/messages", SHOWN, "image"),
        ("/v1/messages/count_tokens", CLAUDE, "image"),
        ("/v1/responses", ITEMS, "input_image"),
        ("/v1/responses/input_tokens", ITEMS, "input_image"),
    ],
)
def test_the_answer_says_that_it_was_not_shown(http: httpx.Client, path: str, body: dict[str, Any], kind: str) -> None:
    answer = http.post(path, json={"model": "fake"} | body)
    assert (answer.status_code, answer.headers["x-milepost-unseen-parts"]) == (200, kind)


@pytest.mark.parametrize(
    ("path", "body"),
    [("/v1/chat/completions", CHAT), ("/v1/messages", CLAUDE), ("/v1/messages", SHOWN), ("/v1/responses", ITEMS)],
)
def test_the_model_is_told(http: httpx.Client, engine: FakeEngine, path: str, body: dict[str, Any]) -> None:
    http.post(path, json={"model": "fake"} | body)
    prompt = engine.asked[-1][0]["prompt"]
    assert UNSEEN in prompt
    assert "What?" in prompt
    assert "iVBOR" not in prompt


def test_without_images_nothing_is_said(http: httpx.Client) -> None:
    body = {"model": "fake", "messages": said({"type": "text", "text": "What?"})}
    assert "x-milepost-unseen-parts" not in http.post("/v1/chat/completions", json=body).headers


def test_an_image_is_a_place_for_the_cache(http: httpx.Client) -> None:
    body: dict[str, Any] = {"model": "fake", "messages": said(CHAT_PART | {"cache_control": {"type": "ephemeral"}})}
    body["messages"].append({"role": "user", "content": "x" * 64})
    assert http.post("/v1/chat/completions/render", json=body).json()["breakpoints"]


def test_a_conversation_goes_on_and_tells_its_image_back() -> None:
    engine = FakeEngine()
    with serving(state_of(engine)) as url, openai.OpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0) as client:
        first = client.responses.create(**ITEMS)
        client.responses.create(model="", input="And now?", previous_response_id=first.id)
        assert UNSEEN in engine.asked[-1][0]["prompt"]
        (item,) = client.get(f"/responses/{first.id}/input_items", cast_to=httpx.Response).json()["data"]
        assert item["content"][1] == ITEM_PART
