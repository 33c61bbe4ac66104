"""Why a prompt of Anthropic's API could not go on from the client's previous one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anthropic
import pytest
from fake_engine import FakeEngine

EPHEMERAL: dict[str, Any] = {"cache_control": {"type": "ephemeral"}}
TOOL: dict[str, Any] = {"name": "f", "input_schema": {"type": "object"}}
SYSTEM: list[Any] = [{"type": "text", "text": "s" * 100, **EPHEMERAL}]
ASK: list[Any] = [{"role": "user", "content": "q" * 64}]
FIRST: dict[str, Any] = {"model": "", "max_tokens": 4, "system": SYSTEM, "tools": [TOOL], "messages": ASK}


@pytest.fixture(scope="module")
def engine() -> FakeEngine:
    engine = FakeEngine()
    engine.max_model_len = 2048
    return engine


@pytest.fixture(scope="module")
def claude(keyed_url: str) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=keyed_url, api_key="one", max_retries=0) as client:
        yield client


def create(claude: anthropic.Anthropic, previous: str | None, **fields: Any) -> anthropic.types.Message:
    return claude.messages.create(**FIRST | fields, diagnostics={"previous_message_id": previous})


def reason(claude: anthropic.Anthropic, engine: FakeEngine, **changed: Any) -> dict[str, Any] | None:
    """Of a request that follows `FIRST` with `changed` and finds nothing cached; streamed, it is told the same."""
    previous = create(claude, None)
    assert previous.diagnostics is None
    fields = FIRST | changed | {"diagnostics": {"previous_message_id": previous.id}}
    engine.forget()
    with claude.messages.stream(**fields) as stream:
        streamed = stream.get_final_message().diagnostics
    engine.forget()
    told = claude.messages.create(**fields).diagnostics
    assert told == streamed
    return None if told is None else told.to_dict()["cache_miss_reason"]


@pytest.mark.parametrize(
    ("changed", "kind"),
    [
        ({"system": "t" * 100}, "system_changed"),
        ({"system": "t" * 100, "tools": []}, "system_changed"),
        ({"tools": [TOOL, {**TOOL, "name": "g"}]}, "tools_changed"),
        ({"messages": [{"role": "user", "content": "r" * 64}]}, "messages_changed"),
    ],
)
def test_what_changed(claude: anthropic.Anthropic, engine: FakeEngine, changed: dict[str, Any], kind: str) -> None:
    (system, ask) = (len("<system>") + 100, len("<user>") + 64 + len("[f]<assistant>"))
    assert reason(claude, engine, **changed) == {"type": kind, "cache_missed_input_tokens": (system + ask) // 64 * 64}


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"messages": [*ASK, {"role": "assistant", "content": "a"}, {"role": "user", "content": "more"}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "q" * 64, **EPHEMERAL}]}]},
        {"system": "s" * 100},
        {"system": [{"type": "text", "text": "x-anthropic-billing-header: cch=1;"}, *SYSTEM]},
        {"tools": [{**TOOL, **EPHEMERAL}]},
    ],
    ids=["nothing", "messages added", "mark moved", "text for a block", "billing", "mark on a tool"],
)
def test_nothing_changed(claude: anthropic.Anthropic, engine: FakeEngine, changed: dict[str, Any]) -> None:
    assert reason(claude, engine, **changed) is None


def test_other_changes(claude: anthropic.Anthropic, engine: FakeEngine) -> None:
    assert reason(claude, engine, thinking={"type": "enabled", "budget_tokens": 2000}) == {"type": "unavailable"}


def test_only_what_could_not_be_reused_is_told(claude: anthropic.Anthropic) -> None:
    other: dict[str, Any] = {"messages": [{"role": "user", "content": "z" * 64}]}
    create(claude, None, **other)
    told = create(claude, create(claude, None).id, **other)
    assert told.diagnostics is None, "it was cached all the same"


def test_nobody_finds_anothers_message(claude: anthropic.Anthropic, keyed_url: str) -> None:
    previous = create(claude, None)
    unasked = claude.messages.create(**FIRST)
    with anthropic.Anthropic(base_url=keyed_url, api_key="two", max_retries=0) as other:
        for client, name in ((other, previous.id), (claude, "msg_1"), (claude, unasked.id)):
            told = create(client, name).diagnostics
            assert told is not None
            assert told.to_dict() == {"cache_miss_reason": {"type": "previous_message_not_found"}}
    assert unasked.diagnostics is None
