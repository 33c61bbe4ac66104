"""Tools that must be called: a model of random weights calls them, in its family's form, over HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterator

import openai
import pytest
import tokenizers
from byte_llama import byte_tokenizer, running_llama
from fake_engine import serving, state_of

from milepost.models.loader.source import TokenizerSource

END = "<|im_end|>"
TEMPLATES = {
    "hermes": "{# <tool_call> #}{{ messages[-1].content }}{% if think %}<think>{% endif %}{# </think> #}",
    "lfm2": "{# <|tool_call_start|> #}{{ messages[-1].content }}",
    "mistral": "{# [TOOL_CALLS] [ARGS] #}{{ messages[-1].content }}",
    "plain": "{{ messages[-1].content }}",
}
TAGS = ["<|tool_call_start|>", "<|tool_call_end|>", "[TOOL_CALLS]", "[ARGS]", "<think>", "</think>"]
COLOURS = ["red", "blue", "a </tool_call> or }"]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {
                "type": "object",
                "properties": {"colour": {"enum": COLOURS}, "on": {"type": "boolean"}},
                "required": ["colour", "on"],
                "additionalProperties": False,
            },
        },
    }
    for name in ("lamp", "door")
]
ASK = [{"role": "user", "content": "Do!"}]


def tokenizer() -> tokenizers.Tokenizer:
    """Each byte a token, and tags: the most of them are special."""
    backend = byte_tokenizer()
    backend.add_special_tokens([END, *TAGS[:4]])
    backend.add_tokens(TAGS[4:])
    return backend


@pytest.fixture(scope="module", params=TEMPLATES)
def client(request: pytest.FixtureRequest) -> Iterator[openai.OpenAI]:
    engine = running_llama(TokenizerSource(tokenizer(), chat_template=TEMPLATES[request.param]), END)
    try:
        with serving(state_of(engine)) as url, openai.OpenAI(base_url=f"{url}/v1", api_key="x") as client:
            yield client
    finally:
        engine.shutdown()


def check(calls: list[tuple[str, str]]) -> None:
    for name, arguments in calls:
        value = json.loads(arguments)
        assert name in ("lamp", "door")
        assert value.keys() == {"colour", "on"}
        assert value["colour"] in COLOURS
        assert isinstance(value["on"], bool)


@pytest.mark.parametrize("seed", range(3))
def test_required(client: openai.OpenAI, seed: int):
    ask = {"model": "", "messages": ASK, "tools": TOOLS, "tool_choice": "required", "seed": seed, "max_tokens": 900}
    (choice,) = client.chat.completions.create(**ask, parallel_tool_calls=False).choices
    (call,) = choice.message.tool_calls
    check([(call.function.name, call.function.arguments)])
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)

    with client.chat.completions.stream(**ask, parallel_tool_calls=False) as stream:
        assert (
            stream.get_final_completion().choices[0].message.tool_calls[0].function.arguments == call.function.arguments
        )


@pytest.mark.parametrize("seed", range(3))
def test_by_its_name(client: openai.OpenAI, seed: int):
    choice = {"type": "function", "function": {"name": "door"}}
    ask = {"model": "", "messages": ASK, "tools": TOOLS, "tool_choice": choice, "seed": seed}
    (call,) = client.chat.completions.create(**ask).choices[0].message.tool_calls
    check([(call.function.name, call.function.arguments)])
    assert call.function.name == "door"


@pytest.mark.parametrize("seed", range(3))
def test_no_arguments_beyond_those_that_are_named(client: openai.OpenAI, seed: int):
    """Where the schema leaves it open: a model that likes to go on would find no end."""
    parameters = {"type": "object", "properties": {"on": {"type": "boolean"}}, "required": ["on"]}
    tools = [{"type": "function", "function": {"name": "lamp", "parameters": parameters}}]
    choice = {"type": "function", "function": {"name": "lamp"}}
    ask = {"model": "", "messages": ASK, "tools": tools, "tool_choice": choice, "seed": seed}
    (call,) = client.chat.completions.create(**ask).choices[0].message.tool_calls
    assert json.loads(call.function.arguments).keys() == {"on"}


def test_several_at_once(client: openai.OpenAI):
    """A random model ends at once or goes on: all that it calls before it is cut off is a call."""
    for seed in range(4):
        ask = {"model": "", "messages": ASK, "tools": TOOLS, "tool_choice": "required", "max_tokens": 400}
        (choice,) = client.chat.completions.create(**ask, seed=seed).choices
        check([(call.function.name, call.function.arguments) for call in choice.message.tool_calls])
        assert choice.finish_reason == "length" or not choice.message.content


def test_after_the_reasoning_that_the_template_opened(client: openai.OpenAI):
    """Free text until `</think>`, which is made likely; then the call."""
    extra = {"chat_template_kwargs": {"think": True}}
    likely = {str(tokenizer().token_to_id("</think>")): 100}
    ask = {"model": "", "messages": ASK, "tools": TOOLS, "tool_choice": "required", "max_tokens": 400}
    (choice,) = client.chat.completions.create(**ask, logit_bias=likely, extra_body=extra, seed=1).choices
    check([(call.function.name, call.function.arguments) for call in choice.message.tool_calls])
    assert not choice.message.content
