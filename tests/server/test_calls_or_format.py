"""A format and tools in one request: the model calls, or it answers in the format, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from byte_llama import byte_tokenizer, running_llama
from fake_engine import FakeEngine, serving, state_of

from milepost.models.loader.source import TokenizerSource

END = "<|im_end|>"
HERMES = "{# <tool_call> #}{{ messages[-1].content }}{% if think %}<think>{% endif %}{# </think> #}"
LFM2 = "{# <|tool_call_start|> #}{{ messages[-1].content }}"
TAGS = ["<|tool_call_start|>", "<|tool_call_end|>"]
SCHEMA = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"], "additionalProperties": False}
FORMAT = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}
TOOL = {"type": "function", "function": {"name": "lamp", "parameters": {"type": "object", "uniqueItems": True}}}
ASK: Any = {"model": "", "messages": [{"role": "user", "content": "Do!"}], "tools": [TOOL], "response_format": FORMAT}


def tokenizer() -> Any:
    """Each byte a token, and tags."""
    backend = byte_tokenizer()
    backend.add_special_tokens([END, *TAGS])
    backend.add_tokens(["<think>", "</think>"])
    return backend


@pytest.fixture(scope="module", params=[HERMES, LFM2], ids=["hermes", "lfm2"])
def client(request: pytest.FixtureRequest) -> Iterator[openai.OpenAI]:
    engine = running_llama(TokenizerSource(tokenizer(), chat_template=request.param), END)
    try:
        with serving(state_of(engine)) as url, openai.OpenAI(base_url=f"{url}/v1", api_key="x") as client:
            yield client
    finally:
        engine.shutdown()


def likely(*texts: str) -> dict[str, float]:
    """Makes the first token of each text likely."""
    return {str(tokenizer().encode(text).ids[0]): 60 for text in texts}


@pytest.mark.parametrize("seed", range(3))
def test_an_answer_keeps_the_format(client: openai.OpenAI, seed: int):
    (choice,) = client.chat.completions.create(**ASK, seed=seed, max_tokens=400, logit_bias=likely("{")).choices
    assert json.loads(choice.message.content) in ({"n": 1}, {"n": 2})
    assert (choice.message.tool_calls, choice.finish_reason) == (None, "stop")


@pytest.mark.parametrize("seed", range(2))
def test_a_call_is_a_call(client: openai.OpenAI, seed: int):
    """Whose arguments are free: a schema that no grammar could keep is no hindrance."""
    bias = likely("<", "<|tool_call_start|>", "}", END)
    ask = ASK | {"seed": seed, "max_tokens": 900, "logit_bias": bias, "parallel_tool_calls": False}
    (choice,) = client.chat.completions.create(**ask).choices
    (call,) = choice.message.tool_calls
    assert (call.function.name, choice.message.content, choice.finish_reason) == ("lamp", None, "tool_calls")
    assert isinstance(json.loads(call.function.arguments), dict)
    with client.chat.completions.stream(**ask) as stream:
        streamed = stream.get_final_completion().choices[0]
    assert streamed.message.tool_calls[0].function.arguments == call.function.arguments


def test_without_the_choice_there_is_only_the_format(client: openai.OpenAI):
    bias = likely("<", "<|tool_call_start|>")
    (choice,) = client.chat.completions.create(**ASK, tool_choice="none", max_tokens=400, logit_bias=bias).choices
    assert json.loads(choice.message.content) in ({"n": 1}, {"n": 2})


@pytest.mark.parametrize("tags", [["{"], ["<", "<|tool_call_start|>"]])
def test_after_the_reasoning_that_the_template_opened(client: openai.OpenAI, tags: list[str]):
    bias = likely(*tags, "}", END) | {str(tokenizer().token_to_id("</think>")): 100}
    extra = {"chat_template_kwargs": {"think": True}}
    ask = ASK | {"parallel_tool_calls": False, "max_tokens": 900, "logit_bias": bias, "extra_body": extra}
    (choice,) = client.chat.completions.create(**ask).choices
    if tags == ["{"]:
        assert json.loads(choice.message.content) in ({"n": 1}, {"n": 2})
    else:
        assert [call.function.name for call in choice.message.tool_calls] == ["lamp"]


def said(reply: str, template: str, format: dict[str, Any] = FORMAT, **fields: Any) -> Any:
    engine = FakeEngine(reply=reply, template=template)
    with serving(state_of(engine)) as url, openai.OpenAI(base_url=f"{url}/v1", api_key="x") as client:
        choice = client.chat.completions.create(**ASK | {"response_format": format} | fields).choices[0]
    return choice.message, engine.asked[-1][1].structured_outputs


CALL = '<tool_call>\n{"name": "lamp", "arguments": {}}\n</tool_call>'


def test_a_tag_in_a_text_of_the_answer_is_text():
    answer = json.dumps({"n": CALL})
    message, grammar = said(answer, HERMES)
    assert (message.content, message.tool_calls) == (answer, None)
    assert grammar.or_calls.tools == {"lamp": None}
    assert grammar.json == SCHEMA


@pytest.mark.parametrize(("parallel", "num_calls"), [(True, 2), (False, 1)])
def test_several_calls(parallel: bool, num_calls: int):
    message, grammar = said(f"{CALL}\n{CALL}", HERMES, parallel_tool_calls=parallel)
    assert len(message.tool_calls) == num_calls
    assert grammar.or_calls.max_calls == (None if parallel else 1)
    assert not message.content


def test_reasoning_comes_first():
    extra = {"chat_template_kwargs": {"think": True}}
    message, grammar = said(f"hm</think>\n\n{CALL}", HERMES, extra_body=extra)
    assert (message.reasoning, [call.function.name for call in message.tool_calls]) == ("hm", ["lamp"])
    assert grammar.after == "</think>"
    message, _ = said('hm</think>\n\n{"n": 1}', HERMES, extra_body=extra)
    assert (message.reasoning, message.content) == ("hm", '{"n": 1}')


def test_where_calls_begin_like_answers_there_are_none():
    """Bare JSON of a tool could be an answer: the format is kept, as long as no call is forced."""
    answer = '{"name": "lamp", "arguments": {}}'
    message, grammar = said(answer, "{{ messages[-1].content }}")
    assert (message.content, message.tool_calls, grammar.or_calls) == (answer, None, None)
    message, grammar = said(answer, "{{ messages[-1].content }}", format={"type": "text"})
    assert (message.tool_calls[0].function.name, grammar) == ("lamp", None)
