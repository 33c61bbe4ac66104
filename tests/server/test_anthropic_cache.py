"""What Anthropic's clients say about the prefix cache, and what they are told, over a real model."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from typing import Any

import anthropic
import pytest
from fake_engine import TEMPLATE, FakeTokenizer, serving, state_of
from real_engine import running_engine

from milepost.engine.async_llm import AsyncLLM
from milepost.engine.chat import ChatTemplate
from milepost.outputs import RequestOutput
from milepost.sampling_params import SamplingParams

EPHEMERAL: dict[str, Any] = {"cache_control": {"type": "ephemeral"}}
UNIT = 64


class Reading:
    """A model without a tokenizer, behind one for ASCII. What it writes has no text."""

    def __init__(self, engine: AsyncLLM) -> None:
        self._engine = engine
        self.tokenizer, self.chat_template = FakeTokenizer(), ChatTemplate(TEMPLATE)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def generate(self, prompt: Any, params: SamplingParams, *args: Any, **named: Any) -> AsyncIterator[RequestOutput]:
        return self._engine.generate(prompt, replace(params, detokenize=False), *args, **named)


@pytest.fixture(scope="module")
def claude() -> Iterator[anthropic.Anthropic]:
    """No states but those at ends, boundaries and breakpoints are kept."""
    with (
        running_engine(prefix_cache_retention_interval=0) as engine,
        serving(state_of(Reading(engine))) as url,  # type: ignore[arg-type]
        anthropic.Anthropic(base_url=url, api_key="none", max_retries=0, timeout=60) as client,
    ):
        yield client


def ask(claude: anthropic.Anthropic, *blocks: str | dict[str, Any], **fields: Any) -> anthropic.types.Usage:
    """The usage of an answer to one message."""
    content: Any = [{"type": "text", "text": block} if isinstance(block, str) else block for block in blocks]
    messages: Any = [{"role": "user", "content": content}]
    counted = claude.messages.count_tokens(model="", messages=messages, **fields)
    usage = claude.messages.create(model="", max_tokens=1, messages=messages, **fields).usage
    read, created = usage.cache_read_input_tokens, usage.cache_creation_input_tokens
    assert read is not None
    assert created is not None
    assert usage.input_tokens + read + created == counted.input_tokens
    return usage


def marked(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text, **EPHEMERAL}


def test_a_repeated_prompt_is_read_from_the_cache(claude: anthropic.Anthropic) -> None:
    text = "a" * 200
    first, second = ask(claude, text), ask(claude, text)
    assert (first.cache_read_input_tokens, first.cache_creation_input_tokens) == (0, 0), "nothing was marked"
    assert second.cache_read_input_tokens == 216
    assert second.cache_creation_input_tokens == 0


def test_a_marked_block_is_kept_and_an_unmarked_one_is_not(claude: anthropic.Anthropic) -> None:
    shared = "b" * 150
    ask(claude, shared, "x" * 150)
    assert ask(claude, shared, "y" * 50).cache_read_input_tokens == 0
    shared = "c" * 150
    first = ask(claude, marked(shared), "x" * 150)
    assert (first.cache_read_input_tokens, first.cache_creation_input_tokens) == (0, 2 * UNIT)
    second = ask(claude, marked(shared), "y" * 50)
    assert (second.cache_read_input_tokens, second.cache_creation_input_tokens) == (2 * UNIT, 0)


def test_what_lies_between_the_cached_part_and_the_last_mark_is_new(claude: anthropic.Anthropic) -> None:
    shared, more = "d" * 150, "e" * 150
    ask(claude, marked(shared), "x" * 90)
    usage = ask(claude, marked(shared), marked(more), "z" * 90)
    end = len("<user>") + len(shared) + len("\n") + len(more)
    assert usage.cache_read_input_tokens == 2 * UNIT
    assert usage.cache_creation_input_tokens == end // UNIT * UNIT - 2 * UNIT


@pytest.mark.parametrize("place", ["system", "tool", "whole request"])
def test_other_places_for_a_mark(claude: anthropic.Anthropic, place: str) -> None:
    text = f"{place} ".ljust(150, "f")
    if place == "system":
        usage = ask(claude, "q" * 80, system=[marked(text)])
        end = len("<system>") + len(text)
    elif place == "tool":
        tools = [{"name": "f", "input_schema": {"type": "object"}, **EPHEMERAL}]
        usage = ask(claude, "q" * 80, system=text, tools=tools)
        end = len("<system><user>") + len(text)
    else:
        usage = ask(claude, text, **EPHEMERAL)
        end = len("<user>") + len(text)
    assert usage.cache_creation_input_tokens == end // UNIT * UNIT


def test_a_stream_tells_at_its_start_and_its_end(claude: anthropic.Anthropic) -> None:
    messages: Any = [{"role": "user", "content": [marked("g" * 150), {"type": "text", "text": "h" * 90}]}]
    for read, created in ((0, 2 * UNIT), (4 * UNIT + 1, 0)):
        start, *_, last, _ = claude.messages.create(model="", max_tokens=2, messages=messages, stream=True)
        assert start.type == "message_start"
        assert last.type == "message_delta"
        for usage in (start.message.usage, last.usage):
            assert (usage.cache_read_input_tokens, usage.cache_creation_input_tokens) == (read, created)
        assert (start.message.usage.output_tokens, last.usage.output_tokens) == (1, 2)
