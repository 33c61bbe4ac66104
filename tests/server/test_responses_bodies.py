"""Bad bodies of the Responses API: an error of OpenAI's shape or a whole answer, and a server that goes on."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
import test_body
from fake_engine import FakeEngine
from test_responses import TOOLS, events_of

MESSAGE = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "q"}]}
ITEMS = [
    MESSAGE,
    {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "r"}]},
    {"role": "assistant", "content": "a", "phase": "commentary"},
    {"type": "function_call", "call_id": "c", "name": "weather", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "rain"}]},
]
BODY: dict[str, Any] = {
    "model": "fake",
    "input": ITEMS,
    "instructions": "i",
    "tools": TOOLS,
    "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "weather"}]},
    "text": {"format": {"type": "text"}, "verbosity": "low"},
    "reasoning": {"effort": "low", "summary": "auto"},
    "include": ["message.output_text.logprobs"],
    "top_logprobs": 1,
    "metadata": {"a": "b"},
    "truncation": "auto",
    "max_output_tokens": 9,
    "prompt_cache_options": {"comparison_response_id": "x"},
}
VALID = [
    ("/v1/responses", BODY),
    ("/v1/responses", {"model": "", "input": "q", "stream": True}),
    ("/v1/responses/input_tokens", {"input": ITEMS, "tools": TOOLS}),
]
ENDS = ("response.completed", "response.incomplete")


def assert_well_formed(answer: httpx.Response) -> None:
    if answer.status_code != 200:
        test_body.assert_well_formed(answer)
    elif answer.headers["content-type"].startswith("text/event-stream"):
        assert [event["type"] for event in events_of(answer) if event["type"] in ENDS] == [
            events_of(answer)[-1]["type"]
        ]
    else:
        assert answer.json().get("error") is None


@pytest.mark.parametrize("number", [300, pytest.param(10_000, marks=pytest.mark.full)])
def test_mutated_bodies(http: httpx.Client, engine: FakeEngine, number: int) -> None:
    test_body.survive_mutations(http, engine, number, VALID, assert_well_formed)


def test_parts_of_paths(http: httpx.Client) -> None:
    for path in ("%00", "x" * 5000, "%ff", "..%2f..", "resp_%0d%0a"):
        for method, end in (("GET", ""), ("DELETE", ""), ("POST", "/cancel"), ("GET", "/input_items?limit=x")):
            answer = http.request(method, f"/v1/responses/{path}{end}")
            assert answer.status_code == 404
            test_body.assert_well_formed(answer)
