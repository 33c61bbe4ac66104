"""Structured outputs over HTTP: every field that asks for them, every error, and a random model that keeps them."""

import asyncio
import dataclasses
import json
import re
import sys
from collections.abc import Iterator
from enum import StrEnum
from typing import Any

import httpx
import openai
import pytest
from byte_llama import byte_tokenizer, running_llama
from fake_engine import FakeEngine, serving, state_of
from pydantic import BaseModel, Field
from tokenizers import AddedToken

from milepost.engine import async_llm
from milepost.engine.async_llm import AsyncLLM
from milepost.errors import RequestError
from milepost.models.loader.source import TokenizerSource
from milepost.sampling_params import SamplingParams
from milepost.structured_outputs import StructuredOutputsParams

ASK: Any = [{"role": "user", "content": "Where?"}]
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}
TEMPLATE = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"


def running_model() -> AsyncLLM:
    backend = byte_tokenizer()
    backend.add_special_tokens([AddedToken("</s>", special=True)])
    tokenizer = TokenizerSource(backend, {"eos_token": "</s>"}, TEMPLATE)
    return running_llama(tokenizer, "</s>", max_position_embeddings=512)


@pytest.fixture(scope="module")
def llm() -> Iterator[AsyncLLM]:
    llm = running_model()
    try:
        yield llm
    finally:
        llm.shutdown()


@pytest.fixture(scope="module")
def random_url(llm: AsyncLLM) -> Iterator[str]:
    with serving(state_of(llm)) as url:  # type: ignore[arg-type]
        yield url


@pytest.fixture(scope="module")
def real(random_url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=random_url, timeout=60) as client:
        yield client


@pytest.fixture(scope="module")
def sdk(random_url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{random_url}/v1", api_key="none", max_retries=0, timeout=60) as client:
        yield client


# What each field asks for

FIELDS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"response_format": {"type": "json_object"}}, {"json_object": True, "param": "response_format"}),
    ({"response_format": {"type": "json_object", "schema": SCHEMA}}, {"json": SCHEMA, "param": "response_format"}),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, "strict": True}}},
        {"json": SCHEMA, "param": "response_format"},
    ),
    ({"structured_outputs": {"json": SCHEMA, "regex": None, "later": 1}}, {"json": SCHEMA}),
    (
        {"structured_outputs": {"json": "{}", "disable_any_whitespace": True}},
        {"json": "{}", "disable_any_whitespace": True},
    ),
    ({"structured_outputs": {"regex": "a+"}}, {"regex": "a+"}),
    ({"structured_outputs": {"choice": ["a", "b"]}}, {"choice": ["a", "b"]}),
    ({"structured_outputs": {"grammar": 'start: "a"'}}, {"grammar": 'start: "a"'}),
    ({"structured_outputs": {"json_object": True}}, {"json_object": True}),
    ({"structured_outputs": {"regex": "a", "tool_calls": 1, "after": "x", "param": "y"}}, {"regex": "a"}),
    ({"guided_json": SCHEMA}, {"json": SCHEMA, "param": "guided_json"}),
    ({"guided_regex": "a+"}, {"regex": "a+", "param": "guided_regex"}),
    ({"guided_choice": ["a"]}, {"choice": ["a"], "param": "guided_choice"}),
    ({"guided_grammar": 'root ::= "a"'}, {"grammar": 'root ::= "a"', "param": "guided_grammar"}),
    (
        {"guided_json": SCHEMA, "guided_whitespace_pattern": " ?"},
        {"json": SCHEMA, "whitespace_pattern": " ?", "param": "guided_json"},
    ),
    (
        {"response_format": {"type": "json_object"}, "structured_outputs": {"whitespace_pattern": ""}},
        {"json_object": True, "whitespace_pattern": "", "param": "response_format"},
    ),
    ({"json_schema": SCHEMA}, {"json": SCHEMA, "param": "json_schema"}),
    ({"grammar": 'root ::= "a"'}, {"grammar": 'root ::= "a"', "param": "grammar"}),
]  # fmt: skip


@pytest.mark.parametrize(("body", "asked"), FIELDS, ids=[f"{'-'.join(body)}-{i}" for i, (body, _) in enumerate(FIELDS)])
@pytest.mark.parametrize("route", ["/v1/chat/completions", "/v1/completions"])
def test_fields(
    http: httpx.Client, engine: FakeEngine, route: str, body: dict[str, Any], asked: dict[str, Any]
) -> None:
    prompt = {"messages": ASK} if "chat" in route else {"prompt": "Where?"}
    answer = http.post(route, json={"model": ""} | prompt | body)
    assert answer.status_code == 200, answer.text
    assert engine.asked[-1][1].structured_outputs == StructuredOutputsParams(**asked)


def test_the_order_of_properties_is_kept(http: httpx.Client, engine: FakeEngine) -> None:
    properties: dict[str, Any] = {name: {} for name in ("z", "a", "m")}
    http.post("/v1/completions", json={"model": "", "prompt": "x", "guided_json": {"properties": properties}})
    asked = engine.asked[-1][1].structured_outputs
    assert asked is not None
    assert isinstance(asked.json, dict)
    assert list(asked.json["properties"]) == ["z", "a", "m"]


ANY = [
    {},
    {"response_format": {"type": "text"}},
    {"response_format": {}},
    {"structured_outputs": None, "guided_json": None, "grammar": None},
]


@pytest.mark.parametrize("body", ANY, ids=str)
def test_any_answer_will_do(http: httpx.Client, engine: FakeEngine, body: dict[str, Any]) -> None:
    assert http.post("/v1/chat/completions", json={"model": "", "messages": ASK} | body).status_code == 200
    assert engine.asked[-1][1].structured_outputs is None


WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"response_format": {"type": "structural_tag"}}, "response_format", "structural_tag"),
    ({"response_format": {"type": ["x"]}}, "response_format", "not supported"),
    ({"response_format": {"type": "json_schema"}}, "response_format", "has no schema"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "n"}}}, "response_format", "has no schema"),
    ({"response_format": {"type": "json_schema", "json_schema": {"schema": 3}}}, "response_format", "object"),
    ({"response_format": "json"}, "response_format", "dictionary"),
    ({"structured_outputs": {"structural_tag": "{}"}}, "structured_outputs", "structural_tag"),
    ({"structured_outputs": "json"}, "structured_outputs", "must be an object"),
    ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs", "regex and choice"),
    ({"structured_outputs": {"disable_any_whitespace": True}}, "structured_outputs", "exactly one"),
    ({"structured_outputs": {"json": {}, "disable_any_whitespace": "x"}}, "structured_outputs", "true or false"),
    ({"guided_json": {}, "guided_regex": "a"}, "guided_regex", "guided_json and guided_regex cannot be kept at once"),
    ({"guided_json": {}, "response_format": {"type": "json_object"}}, "guided_json", "at once"),
    ({"guided_choice": "a"}, "guided_choice", "list of texts"),
    ({"guided_regex": ["a"]}, "guided_regex", "must be text"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("body", "param", "told"), WRONG, ids=[f"{param}-{i}" for i, (_, param, _) in enumerate(WRONG)]
)
def test_wrong_fields(http: httpx.Client, body: dict[str, Any], param: str, told: str) -> None:
    answer = http.post("/v1/chat/completions", json={"model": "", "messages": ASK} | body)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param)
    assert told in error["message"]


# What only the compiler finds

UNKEPT: list[tuple[dict[str, Any], str, str]] = [
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"uniqueItems": True}}}},
        "response_format",
        "uniqueItems",
    ),
    ({"guided_json": {"properties": {"a": {"if": {}, "then": {}}}, "required": ["a"]}}, "guided_json", "then"),
    ({"structured_outputs": {"json": {"type": "string", "format": "hue"}}}, "structured_outputs", "hue"),
    ({"structured_outputs": {"regex": "(a"}}, "structured_outputs", "regex"),
    ({"guided_regex": r"(a)\1"}, "guided_regex", "regex"),
    ({"guided_grammar": "start: nothing"}, "guided_grammar", "nothing"),
    ({"guided_grammar": "{"}, "guided_grammar", "grammar"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("body", "param", "told"), UNKEPT, ids=[f"{param}-{i}" for i, (_, param, _) in enumerate(UNKEPT)]
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_cannot_be_kept(real: httpx.Client, body: dict[str, Any], param: str, told: str, stream: bool) -> None:
    answer = real.post("/v1/chat/completions", json={"model": "", "messages": ASK, "stream": stream} | body)
    error = answer.json()["error"]
    assert (answer.status_code, error["type"], error["param"]) == (400, "invalid_request_error", param)
    assert told in error["message"]
    assert "(hint: " in error["message"]


def test_a_model_without_a_tokenizer(random_url: str, llm: AsyncLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    bare = dataclasses.replace(llm._engine.model, grammars=None)
    monkeypatch.setattr(llm._engine, "model", bare)
    answer = httpx.post(f"{random_url}/v1/completions", json={"model": "", "prompt": [1, 2], "guided_regex": "a"})
    assert answer.status_code == 400
    assert "need a tokenizer" in answer.json()["error"]["message"]


def test_a_server_without_llguidance(real: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    answer = real.post("/v1/completions", json={"model": "", "prompt": "x", "guided_regex": "a"})
    assert answer.status_code == 400
    assert "pip install llguidance" in answer.json()["error"]["message"]
    assert real.post("/v1/completions", json={"model": "", "prompt": "x", "max_tokens": 1}).status_code == 200


# Answers


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


class Thing(BaseModel):
    count: int = Field(ge=0, le=999)
    colour: Colour
    tags: list[Colour] = Field(max_length=3)
    inner: "Thing | None"


def test_openais_sdk_parses_into_a_pydantic_class(sdk: openai.OpenAI) -> None:
    for seed in range(3):
        answer = sdk.chat.completions.parse(model="", messages=ASK, response_format=Thing, seed=seed, max_tokens=400)
        assert answer.choices[0].finish_reason == "stop"
        assert isinstance(answer.choices[0].message.parsed, Thing)


def test_streamed(sdk: openai.OpenAI) -> None:
    with sdk.chat.completions.stream(model="", messages=ASK, response_format=Thing, seed=5, max_tokens=400) as stream:
        stream.until_done()
        answer = stream.get_final_completion()
    assert isinstance(answer.choices[0].message.parsed, Thing)
    assert answer.choices[0].finish_reason == "stop"


def test_completions_of_several_prompts_and_samples(real: httpx.Client) -> None:
    body = {"model": "", "prompt": ["a", "b"], "n": 2, "seed": 1, "guided_regex": "[xy]{3}", "temperature": 2}
    choices = real.post("/v1/completions", json=body).json()["choices"]
    assert len(choices) == 4
    assert all(re.fullmatch("[xy]{3}", choice["text"]) for choice in choices)
    assert len({choice["text"] for choice in choices}) > 1


def test_log_probabilities_can_be_written(real: httpx.Client) -> None:
    body = {"model": "", "messages": ASK, "logprobs": True, "top_logprobs": 3, "guided_choice": ["a"]}
    (entry,) = real.post("/v1/chat/completions", json=body).json()["choices"][0]["logprobs"]["content"]
    assert (entry["token"], entry["logprob"]) == ("a", 0.0)
    assert json.dumps(entry, allow_nan=False)


# The engine's face


def test_compiling_is_bounded_and_goes_on_when_its_caller_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    llm = running_model()
    grammars = llm._engine.model.grammars
    assert grammars is not None

    async def ask(params: SamplingParams) -> str:
        *_, last = [output.outputs[0].text async for output in llm.generate("x", params, "r")]
        return last

    async def main() -> str:
        gate = asyncio.Event()
        holding = grammars._submit(lambda: asyncio.run_coroutine_threadsafe(gate.wait(), loop).result())  # type: ignore
        params = SamplingParams(max_tokens=9, structured_outputs=StructuredOutputsParams(choice=["ab"]))
        with pytest.raises(RequestError, match="was not compiled within"):
            await ask(params)
        gate.set()
        await asyncio.wrap_future(holding)
        monkeypatch.setattr(async_llm, "COMPILE_SECONDS", 60.0)
        return await ask(params)

    monkeypatch.setattr(async_llm, "COMPILE_SECONDS", 0.05)
    loop = asyncio.new_event_loop()
    try:
        assert loop.run_until_complete(main()) == "ab"
    finally:
        loop.close()
        llm.shutdown()
