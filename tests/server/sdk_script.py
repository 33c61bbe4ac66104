"""A server whose model follows a script, for what the official clients make of its answers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pydantic
from fake_engine import REPLY, TOOLS_AND_MESSAGES, FakeEngine, serving, state_of

TEMPLATE = TOOLS_AND_MESSAGES + "{%- endfor %}<assistant>"
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
HELLO: list[Any] = [{"role": "user", "content": "Hello"}]
ASK_JSON: list[Any] = [{"role": "user", "content": "As JSON!"}]
ASK_WEATHER: list[Any] = [{"role": "user", "content": "Weather?"}]


class weather(pydantic.BaseModel):
    """The weather of a city."""

    city: str


def script(prompt: str) -> str:
    """A result of a tool is told, the weather is asked of a tool, and JSON is what was to be JSON."""
    if "<tool>" in prompt:
        return "It rains."
    if "Weather" in prompt:
        return f"<think>\nHm.\n</think>\n\n{CALL}"
    return '{"city": "Rome"}' if "JSON" in prompt else REPLY


@contextmanager
def scripted(**settings: Any) -> Iterator[tuple[str, FakeEngine]]:
    """The server's address, and its engine."""
    engine = FakeEngine(reply=script, template=TEMPLATE)
    engine.max_model_len = 4096
    with serving(state_of(engine, **settings)) as url:
        yield url, engine
