"""The prefix cache in the Responses API: what clients mark, what is read again, and why a prompt was not cached."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from fake_engine import FakeEngine, serving, state_of
from real_engine import running_engine
from test_anthropic_cache import Reading
from test_responses import TEMPLATE, TOOLS

FIRST: dict[str, Any] = {
    "model": "",
    "max_output_tokens": 4,
    "instructions": "s" * 100,
    "tools": TOOLS,
    "input": "q" * 64,
}
MARK = {"prompt_cache_breakpoint": {"mode": "explicit"}}


@pytest.fixture(scope="module")
def engine() -> FakeEngine:
    engine = FakeEngine(template=TEMPLATE)
    engine.max_model_len = 4096
    return engine


def compared(client: openai.OpenAI, previous: str, **changed: Any) -> dict[str, Any]:
    """`prompt_cache_diagnostics` of a request that differs from `FIRST` so."""
    options = {"prompt_cache_options": {"comparison_response_id": previous}}
    told = client.responses.create(**FIRST | changed | options).prompt_cache_diagnostics
    assert told is not None
    return told.to_dict()


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"instructions": "t" * 100}, "input_changed"),
        ({"input": "r" * 64}, "input_changed"),
        ({"tools": [TOOLS[0] | {"description": "Of a city."}]}, "tools_changed"),
        ({"reasoning": {"effort": "low"}}, "reasoning_effort_changed"),
        ({"temperature": 0.5, "prompt_cache_key": "other", "metadata": {"a": "b"}}, None),
    ],
    ids=["instructions", "input", "tools", "effort", "nothing"],
)
def test_what_changed_is_told(one: openai.OpenAI, engine: FakeEngine, changed: Any, reason: str | None) -> None:
    first = one.responses.create(**FIRST)
    assert first.prompt_cache_diagnostics is None
    assert first.usage is not None
    reusable = first.usage.input_tokens // 16 * 16
    engine.forget()
    told = compared(one, first.id, **changed)
    if reason is None:
        assert told == {"type": "unavailable"}
    else:
        assert (told["type"], told["reason"]) == ("cache_miss", reason)
        assert told["cache_missed_tokens"] == told["comparison_reusable_tokens"] == reusable
    engine.forget()
    fields = FIRST | changed | {"prompt_cache_options": {"comparison_response_id": first.id}}
    created, *_, last = one.responses.create(**fields, stream=True)
    for event in (created, last):
        assert event.response.prompt_cache_diagnostics.to_dict() == told  # type: ignore[union-attr]


def test_a_hit_and_nothing_to_compare_with(one: openai.OpenAI, keyed_url: str) -> None:
    first = one.responses.create(**FIRST)
    assert compared(one, first.id) == {"type": "cache_hit"}
    assert compared(one, first.id, store=False, input=[{"role": "user", "content": "q" * 64}]) == {"type": "cache_hit"}
    assert compared(one, "resp_0") == {"type": "comparison_response_not_found"}
    with openai.OpenAI(base_url=f"{keyed_url}/v1", api_key="two", max_retries=0) as two:
        assert compared(two, first.id) == {"type": "comparison_response_not_found"}


def test_going_on_is_no_change(one: openai.OpenAI, engine: FakeEngine) -> None:
    first = one.responses.create(**FIRST)
    engine.forget()
    assert compared(one, first.id, input="more", previous_response_id=first.id) == {"type": "unavailable"}


def test_marked_parts_are_places_in_the_cache(one: openai.OpenAI, engine: FakeEngine) -> None:
    parts: Any = [{"type": "input_text", "text": "abc", **MARK}, {"type": "input_text", "text": "def"}]
    response = one.responses.create(model="", input=[{"role": "user", "content": parts}])
    prompt = engine.asked[-1][0]
    assert [prompt["prompt"][:place] for place in prompt["places"].breakpoints] == ["<user>abc"]
    one.responses.create(model="", input="more", previous_response_id=response.id)
    assert engine.asked[-1][0]["places"].breakpoints == prompt["places"].breakpoints
    told = one.responses.input_items.list(response.id).data[0].to_dict()["content"]
    assert told == parts


def test_the_next_turn_reads_only_what_is_new() -> None:
    with (
        running_engine() as engine,
        serving(state_of(Reading(engine))) as url,  # type: ignore[arg-type]
        openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=60) as client,
    ):
        first = client.responses.create(model="", input="a" * 200, max_output_tokens=1)
        second = client.responses.create(model="", input="more", max_output_tokens=1, previous_response_id=first.id)
        assert first.usage is not None
        assert second.usage is not None
        details = first.usage.input_tokens_details
        assert (details.cached_tokens, details.cache_write_tokens) == (0, 192)
        assert second.usage.input_tokens_details.cached_tokens == 207
