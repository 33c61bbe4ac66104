"""Bad bodies of Anthropic's API: an error of its shape or a whole answer, and a server that goes on."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
import test_body
from fake_engine import FakeEngine

BODY: dict[str, Any] = {
    "model": "fake",
    "max_tokens": 9,
    "system": [{"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}}],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "q"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "t", "signature": "x"},
                {"type": "text", "text": "a"},
                {"type": "tool_use", "id": "c", "name": "f", "input": {"a": [1]}},
            ],
        },
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "c", "content": [{"type": "text", "text": "r"}]}],
        },
    ],
    "tools": [{"name": "f", "input_schema": {"type": "object"}}, {"type": "web_search_20250305", "name": "web_search"}],
    "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
    "thinking": {"type": "enabled", "budget_tokens": 1024},
}
GENERATION = {"stop_sequences": ["x"], "top_k": 3, "diagnostics": {"previous_message_id": "msg_x"}}
VALID = [
    ("/v1/messages", BODY | GENERATION),
    ("/v1/messages", {"model": "", "messages": [{"role": "user", "content": "q"}], "max_tokens": 5, "stream": True}),
    ("/v1/messages/count_tokens", BODY),
]


def assert_well_formed(answer: httpx.Response) -> None:
    assert answer.status_code < 500, answer.text
    if answer.status_code != 200:
        told = answer.json()
        assert (told["type"], set(told["error"])) == ("error", {"type", "message"})
        assert 0 < len(told["error"]["message"]) <= 2100
        assert "\n" not in told["error"]["message"]
        assert "Traceback" not in answer.text
    elif answer.headers["content-type"].startswith("text/event-stream"):
        kinds = [json.loads(line[6:])["type"] for line in answer.text.splitlines() if line.startswith("data: ")]
        assert (kinds.count("message_stop"), kinds[-1]) == (1, "message_stop")
        assert "error" not in kinds
    else:
        assert answer.json().get("type") != "error"


@pytest.mark.parametrize("number", [300, pytest.param(10_000, marks=pytest.mark.full)])
def test_mutated_bodies(http: httpx.Client, engine: FakeEngine, number: int) -> None:
    test_body.survive_mutations(http, engine, number, VALID, assert_well_formed)
