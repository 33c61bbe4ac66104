"""POST /v1/responses through OpenAI's own client, and the bytes of its streams; the model is a script."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import openai
import pydantic
import pytest
from fake_engine import REPLY, TOOLS_AND_MESSAGES, FakeEngine, failed_inside, serving, state_of
from openai.types.responses import Response

from milepost.structured_outputs import StructuredOutputsParams

RESPONSES = "/v1/responses"
TEMPLATE = TOOLS_AND_MESSAGES + "{%- endfor %}{% if reasoning_effort %}[{{ reasoning_effort }}]{% endif %}<assistant>"
TOOLS: list[Any] = [
    {
        "type": "function",
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        "strict": None,
        "description": None,
    }
]
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
SCRIPT = f"<think>\nIn é?\n</think>\n\nI ask.\n\n{CALL}\n{CALL.replace('Paris', 'Rome')}"


@contextmanager
def talking(reply: str, **settings: Any) -> Iterator[tuple[openai.OpenAI, FakeEngine]]:
    engine = FakeEngine(reply=reply, template=TEMPLATE)
    engine.max_model_len = 4096
    with (
        serving(state_of(engine, **settings)) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="one", max_retries=0) as client,
    ):
        yield client, engine


@pytest.fixture(scope="module")
def script() -> Iterator[openai.OpenAI]:
    with talking(SCRIPT) as (client, _):
        yield client


def ask(client: openai.OpenAI, **fields: Any) -> Response:
    """The same response, streamed and not."""
    fields = {"model": "fake", "input": "Weather?", **fields}
    whole = client.responses.create(**fields)
    *_, last = client.responses.create(**fields, stream=True)
    assert last.type == f"response.{whole.status}"
    assert same(last.response) == same(whole)  # type: ignore[union-attr]
    return whole


def same(response: Response) -> dict[str, Any]:
    """Without what differs from answer to answer."""
    told = response.to_dict()
    for name in ("id", "created_at", "completed_at", "usage"):
        told.pop(name)
    told["output"] = [{**item, "id": "", "call_id": ""} for item in told["output"]]  # type: ignore[attr-defined]
    return told


def post(url: str, json: dict[str, Any]) -> httpx.Response:
    return httpx.post(f"{url}{RESPONSES}", json=json, timeout=60)


def events_of(answer: httpx.Response) -> list[dict[str, Any]]:
    """The events of a stream, numbered in a row, each with its name on a line of its own; pings are left out."""
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.text.endswith("\n\n")
    found = []
    for part in answer.text.removesuffix("\n\n").split("\n\n"):
        if part.startswith(":"):
            continue
        name, data = part.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    return found


def test_create(client: openai.OpenAI, engine: FakeEngine) -> None:
    response = client.responses.create(model="fake", input="Where?", instructions="Be brief.", metadata={"a": "b"})
    assert (response.status, response.output_text, response.model) == ("completed", REPLY, "fake")
    assert response.id.startswith("resp_")
    (message,) = (item.to_dict() for item in response.output)
    assert (message["type"], message["status"], str(message["id"])[:4]) == ("message", "completed", "msg_")
    prompt = "<system>Be brief.<user>Where?<assistant>"
    assert engine.asked[-1][0]["prompt"] == prompt
    usage = response.usage
    assert usage is not None
    assert (usage.input_tokens, usage.output_tokens) == (len(prompt), len(REPLY.encode()))
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens
    assert (usage.input_tokens_details.cached_tokens, usage.output_tokens_details.reasoning_tokens) == (0, 0)
    assert (response.metadata, response.instructions, response.temperature) == ({"a": "b"}, "Be brief.", 0.25)
    assert (response.tool_choice, response.parallel_tool_calls, response.truncation) == ("auto", True, "disabled")
    again = client.responses.create(model="", input="Where?", instructions="Be brief.").usage
    assert again is not None
    assert again.input_tokens_details.cached_tokens == len(prompt) // 16 * 16


def test_the_client_s_own_reading_of_a_stream(client: openai.OpenAI) -> None:
    with client.responses.stream(model="fake", input="Where?") as stream:
        kinds = [event.type for event in stream]
        response = stream.get_final_response()
    assert (response.output_text, response.status) == (REPLY, "completed")
    assert kinds[0] == "response.created"
    assert kinds[-1] == "response.completed"


def test_life_cycle_of_a_message(http: httpx.Client) -> None:
    events = events_of(http.post(RESPONSES, json={"model": "fake", "input": "q", "stream": True}))
    created, started, added, part_added, *deltas, done, part_done, item_done, last = events
    assert [created["type"], started["type"]] == ["response.created", "response.in_progress"]
    for begun in (created["response"], started["response"]):
        assert (begun["status"], begun["output"], begun["usage"]) == ("in_progress", [], None)
    assert added["item"] | {"id": ""} == {
        "id": "",
        "type": "message",
        "status": "in_progress",
        "role": "assistant",
        "content": [],
    }
    place = {"item_id": added["item"]["id"], "output_index": 0, "content_index": 0}
    part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
    for event in (part_added, *deltas, done, part_done):
        assert event.items() >= place.items()
    assert {delta["type"] for delta in deltas} == {"response.output_text.delta"}
    assert "".join(delta["delta"] for delta in deltas) == done["text"] == REPLY
    assert (part_added["part"], part_done["part"]) == (part, part | {"text": REPLY})
    assert [event["type"] for event in (part_added, done, part_done, item_done)] == [
        "response.content_part.added",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
    ]
    assert item_done["item"] == added["item"] | {"status": "completed", "content": [part_done["part"]]}
    assert last["type"] == "response.completed"
    assert last["response"]["output"] == [item_done["item"]]


def test_reasoning_text_and_calls(script: openai.OpenAI) -> None:
    response = ask(script, tools=TOOLS)
    thought, message, one, other = (item.to_dict() for item in response.output)
    assert thought["content"] == [{"type": "reasoning_text", "text": "In é?"}]
    assert (thought["summary"], "encrypted_content" in thought) == ([], False)
    assert response.output_text == "I ask."
    assert message["status"] == "completed"
    assert (one["type"], one["name"], one["arguments"]) == ("function_call", "weather", '{"city": "Paris"}')
    assert json.loads(str(other["arguments"])) == {"city": "Rome"}
    assert one["call_id"] != other["call_id"]
    assert one["id"] != other["id"]
    assert [tool.to_dict() for tool in response.tools] == TOOLS


def test_life_cycle_of_items(script: openai.OpenAI) -> None:
    fields: dict[str, Any] = {"model": "fake", "input": "Weather?", "tools": TOOLS}
    events = list(script.responses.create(**fields, stream=True))
    kinds: list[list[str]] = [[], [], [], []]
    for event in events[2:-1]:
        told = kinds[event.output_index]  # type: ignore[union-attr]
        kind = event.type.removeprefix("response.")
        if told[-1:] != [kind]:
            told.append(kind)

    def parted(name: str) -> list[str]:
        return ["output_item.added", "content_part.added", f"{name}.delta", f"{name}.done", "content_part.done"]

    call = [f"function_call_arguments.{end}" for end in ("delta", "done")]
    assert kinds[0] == [*parted("reasoning_text"), "output_item.done"]
    assert kinds[1] == [*parted("output_text"), "output_item.done"]
    assert kinds[2] == kinds[3] == ["output_item.added", *call, "output_item.done"]
    assert events[-1].type == "response.completed"
    with script.responses.stream(**fields) as stream:
        assert len(stream.get_final_response().output) == 4


def test_one_call_at_a_time(script: openai.OpenAI) -> None:
    response = ask(script, tools=TOOLS, parallel_tool_calls=False)
    assert [item.type for item in response.output] == ["reasoning", "message", "function_call"]
    assert response.parallel_tool_calls is False


def test_no_calls_where_none_are_wanted(script: openai.OpenAI) -> None:
    assert {item.type for item in ask(script, tools=TOOLS, tool_choice="none").output} == {"reasoning", "message"}


@pytest.mark.parametrize(
    ("choice", "max_calls"),
    [
        ("required", None),
        ({"type": "function", "name": "weather"}, 1),
        (
            {
                "type": "allowed_tools",
                "mode": "required",
                "tools": [{"type": "function", "name": "weather"}, {"type": "mcp"}],
            },
            None,
        ),
    ],
    ids=["required", "named", "allowed"],
)
def test_a_tool_that_must_be_called(choice: Any, max_calls: int | None) -> None:
    with talking(CALL) as (client, engine):
        response = ask(client, tools=TOOLS, tool_choice=choice)
        assert [item.type for item in response.output] == ["function_call"]
        assert same(response)["tool_choice"] == choice
        wanted = engine.asked[-1][1].structured_outputs
        assert wanted is not None
        assert wanted.tool_calls is not None
        assert (set(wanted.tool_calls.tools), wanted.tool_calls.max_calls) == ({"weather"}, max_calls)
        assert wanted.disable_additional_properties, "strict unless it says that it is not"
        ask(client, tools=[TOOLS[0] | {"strict": False}], tool_choice=choice)
        loose = engine.asked[-1][1].structured_outputs
        assert loose is not None
        assert not loose.disable_additional_properties
        with pytest.raises(openai.BadRequestError, match="tool_choice"):
            ask(client, tool_choice=choice)


def test_tools_of_other_types_are_skipped_and_named(script: openai.OpenAI) -> None:
    raw = script.responses.with_raw_response.create(model="", input="q", tools=[{"type": "web_search"}, *TOOLS])
    assert raw.headers["x-milepost-skipped-tools"] == "web_search"
    assert [tool.type for tool in raw.parse().tools] == ["function"]
    with pytest.raises(openai.BadRequestError, match="tool_choice"):
        script.responses.create(model="", input="q", tools=TOOLS, tool_choice={"type": "web_search_preview"})


def test_parse() -> None:
    class Place(pydantic.BaseModel):
        city: str

    with talking('{"city": "Rome"}') as (client, engine):
        response = client.responses.parse(model="fake", input="Where?", text_format=Place)
        assert response.output_parsed == Place(city="Rome")
        wanted = engine.asked[-1][1].structured_outputs
        assert wanted is not None
        assert isinstance(wanted.json, dict)
        assert (wanted.json["required"], wanted.param) == (["city"], "text.format")
        with client.responses.stream(model="fake", input="Where?", text_format=Place) as stream:
            assert stream.get_final_response().output_parsed == Place(city="Rome")
        ask(client, text={"format": {"type": "json_object"}})
        assert engine.asked[-1][1].structured_outputs == StructuredOutputsParams(json_object=True, param="text.format")
        with pytest.raises(openai.BadRequestError, match=r"text\.format"):
            ask(client, text={"format": {"type": "json_schema", "name": "x"}})


def test_parsed_calls(script: openai.OpenAI) -> None:
    class weather(pydantic.BaseModel):
        city: str

    tools: list[Any] = [openai.pydantic_function_tool(weather)]
    response = script.responses.parse(model="", input="q", tools=tools)
    calls = [item for item in response.output if item.type == "function_call"]
    assert [call.parsed_arguments for call in calls] == [weather(city="Paris"), weather(city="Rome")]
    with script.responses.stream(model="", input="q", tools=tools) as stream:
        assert [item.type for item in stream.get_final_response().output][-1] == "function_call"


@pytest.mark.parametrize(("fields", "types"), [({"tools": TOOLS}, ["reasoning", "message"]), ({}, ["reasoning"])])
def test_an_answer_that_is_cut_off(fields: dict[str, Any], types: list[str]) -> None:
    num_tokens = len("<think>\nIn é?\n</think>\n\nI ask".encode()) if fields else len(b"<think>\nIn")
    with talking(SCRIPT) as (client, _):
        response = ask(client, max_output_tokens=num_tokens, **fields)
    assert (response.status, response.max_output_tokens) == ("incomplete", num_tokens)
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    assert [item.type for item in response.output] == types
    assert response.output[-1].to_dict()["status"] == "incomplete"
    assert response.completed_at is None


def test_more_may_be_asked_for_than_the_context_has() -> None:
    engine = FakeEngine(endless=True)
    with serving(state_of(engine)) as url:
        response = post(url, {"model": "", "input": "q", "max_output_tokens": 9999}).json()
        assert (response["status"], response["usage"]["total_tokens"]) == ("incomplete", engine.max_model_len)
        assert engine.asked[-1][1].max_tokens == response["usage"]["output_tokens"], "the engine would refuse more"
        for num_chars in (300, 100_000):
            refused = post(url, {"model": "", "input": "q" * num_chars})
            assert (refused.status_code, refused.json()["error"]["code"]) == (400, "context_length_exceeded")
            assert refused.json()["error"]["param"] == "input"


def test_an_empty_answer_is_an_empty_message() -> None:
    with talking("\n") as (client, _):
        (message,) = ask(client).output
        assert message.to_dict()["content"] == [
            {"type": "output_text", "text": "\n", "annotations": [], "logprobs": []}
        ]
        assert ask(client, max_output_tokens=0).output == []


def test_prewarm_generates_nothing(client: openai.OpenAI, engine: FakeEngine) -> None:
    response = client.responses.create(model="", input="warm", prompt_cache_options={"prewarm": True})
    assert (response.status, response.output, engine.asked[-1][1].max_tokens) == ("completed", [], 0)


def test_log_probabilities_are_those_of_the_text(script: openai.OpenAI) -> None:
    fields: dict[str, Any] = {"tools": TOOLS, "include": ["message.output_text.logprobs"], "top_logprobs": 2}
    response = ask(script, **fields)
    (message,) = (item for item in response.output if item.type == "message")
    told = message.content[0].logprobs  # type: ignore[union-attr]
    assert told is not None
    assert [(entry.token, len(entry.top_logprobs)) for entry in told][-6:] == [(token, 2) for token in "I ask."]
    assert len(told) < len("\n\nI ask.\n\n<tool_call>")
    deltas = [
        event
        for event in script.responses.create(model="", input="Weather?", stream=True, **fields)
        if event.type == "response.output_text.delta"
    ]
    assert sum(len(delta.logprobs) for delta in deltas) == len(told)
    plain = ask(script, tools=TOOLS, top_logprobs=2).output[1]
    assert plain.to_dict()["content"][0]["logprobs"] == []  # type: ignore[index]


def test_reasoning_effort_reaches_the_template() -> None:
    with talking(SCRIPT) as (client, engine):
        response = ask(
            client, reasoning={"effort": "low", "summary": "auto"}, extra_body={"chat_template_kwargs": {"a": 1}}
        )
        assert engine.asked[-1][0]["prompt"] == "<user>Weather?[low]<assistant>"
        assert response.reasoning is not None
        assert (response.reasoning.effort, response.reasoning.summary) == ("low", "auto")


def test_sampling_fields_arrive(client: openai.OpenAI, engine: FakeEngine) -> None:
    more = {"top_k": 5, "seed": 3, "min_p": 0.1, "priority": 2, "cache_salt": "salt", "stop": ["END"]}
    response = client.responses.create(
        model="",
        input="q",
        temperature=0.5,
        top_p=0.9,
        prompt_cache_key="mine",
        prompt_cache_options={"mode": "explicit", "ttl": "12h"},
        safety_identifier="someone",
        user="someone",
        extra_body=more,
    )
    _, params, priority, scope = engine.asked[-1]
    assert (params.temperature, params.top_p, params.top_k, params.stops) == (0.5, 0.9, 5, ("END",))
    assert (params.max_tokens, params.seed, params.min_p, priority) == (None, 3, 0.1, 2)
    assert (response.temperature, response.prompt_cache_key) == (0.5, "mine")
    client.responses.create(model="", input="q", prompt_cache_key="other")
    assert engine.asked[-1][3] != scope, "of the salt; the key of a prompt cache changes nothing"


def test_ignored_fields_are_named(http: httpx.Client) -> None:
    body = {"model": "fake", "input": "q", "background": True, "max_tool_calls": 3, "store": False}
    answer = http.post(RESPONSES, json=body)
    assert answer.headers["x-milepost-ignored-fields"] == "background, max_tool_calls"
    assert (answer.json()["background"], answer.json()["status"]) == (False, "completed")


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"model": None}, "model"),
    ({"input": None}, "input"),
    ({"input": []}, "input"),
    ({"input": 5}, "input"),
    ({"input": [5]}, "input"),
    ({"input": [{"type": ["x"]}]}, "input"),
    ({"input": [{"role": ["x"], "content": "q"}]}, "input"),
    ({"input": [{"role": "user", "content": 5}]}, "input"),
    ({"input": [{"role": "user", "content": [{"type": "input_file", "file_data": "data:"}]}]}, "input"),
    ({"input": [{"type": "function_call", "name": "f"}]}, "input"),
    ({"input": [{"type": "function_call_output", "call_id": "c", "output": 5}]}, "input"),
    ({"input": [{"type": "reasoning", "summary": [5]}]}, "input"),
    ({"input": [{"type": "web_search_call"}]}, "input"),
    ({"truncation": "some"}, "truncation"),
    ({"conversation": "conv_1"}, "conversation"),
    ({"prompt": {"id": "pmpt_1"}}, "prompt"),
    ({"metadata": {"a": 5}}, "metadata"),
    ({"metadata": {str(i): "" for i in range(17)}}, "metadata"),
    ({"top_logprobs": 21}, "top_logprobs"),
    ({"text": {"format": {"type": "xml"}}}, "text.format"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": 5}}, "tool_choice"),
]


@pytest.mark.parametrize(("change", "param"), WRONG, ids=[f"{param}-{i}" for i, (_, param) in enumerate(WRONG)])
def test_what_is_wrong_is_named(http: httpx.Client, change: dict[str, Any], param: str) -> None:
    for stream in (False, True):
        answer = http.post(RESPONSES, json={"model": "fake", "input": "q", "stream": stream} | change)
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == param


def test_an_unknown_model(http: httpx.Client) -> None:
    assert http.post(RESPONSES, json={"model": "other", "input": "q"}).status_code == 404
    assert http.post(f"{RESPONSES}/compact", json={"model": "fake", "input": "q"}).status_code == 404


def test_an_error_in_the_middle_ends_the_stream() -> None:
    engine = FakeEngine()
    engine.fail, engine.fail_after = failed_inside(), 3
    body = {"model": "fake", "input": "q"}
    with serving(state_of(engine)) as url:
        *before, last = events_of(post(url, body | {"stream": True}))
        assert last["type"] == "response.failed"
        response = last["response"]
        assert (response["status"], response["error"]["code"]) == ("failed", "server_error")
        assert response["output"][0]["content"][0]["text"] == "Caf"
        ends = ("response.completed", "response.incomplete", "response.failed", "error")
        assert not any(event["type"] in ends for event in before)
        assert httpx.get(f"{url}{RESPONSES}/{response['id']}", timeout=60).json() == response
        whole = post(url, body)
        assert (whole.status_code, whole.json()["error"]["type"]) == (500, "server_error")


def test_a_stream_that_waits_for_its_prompt_is_kept_alive() -> None:
    with serving(state_of(FakeEngine(step_s=0.2), sse_ping_interval=0.02)) as url:
        body = {"model": "", "input": "q", "stream": True, "max_output_tokens": 2}
        answer = post(url, body)
        assert ": ping\n\n" in answer.text
        events = events_of(answer)
        assert [event["type"] for event in events].count("response.created") == 1
        assert events[-1]["response"]["usage"]["output_tokens"] == 2
        assert ": ping" not in post(url, body | {"sse_ping_interval": -1}).text
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="none")
        with client, client.responses.stream(model="", input="q", max_output_tokens=2) as stream:
            assert [event.type for event in stream][-1] == "response.incomplete"


def test_the_cache_is_explained_when_asked(http: httpx.Client) -> None:
    body = {"model": "fake", "input": "explained"}
    told = http.post(RESPONSES, json=body, headers={"X-Milepost-Cache": "explain"}).json()["cache"]
    assert told["reason"] is None
    *_, last = events_of(http.post(RESPONSES, json=body | {"stream": True, "explain_cache": True}))
    assert set(last["response"]["cache"]) == set(told)
    assert "cache" not in http.post(RESPONSES, json=body).json()


def test_truncation_leaves_out_the_oldest_turns() -> None:
    engine = FakeEngine()  # a context of 256 tokens
    turns = [{"role": role, "content": f"{i}{role[0]}" * 20} for i in range(4) for role in ("user", "assistant")]
    body = {"model": "", "instructions": "Be brief.", "input": [*turns, {"role": "user", "content": "now"}]}
    with serving(state_of(engine)) as url:
        refused = post(url, body)
        assert refused.json()["error"]["code"] == "context_length_exceeded"
        response = post(url, body | {"truncation": "auto"}).json()
        assert (response["truncation"], response["status"]) == ("auto", "completed")
        prompt = engine.asked[-1][0]["prompt"]
        assert prompt.startswith("<system>Be brief.<user>2u")
        assert prompt.endswith("<user>now<assistant>")
        longer = {"role": "user", "content": "x" * 300}
        hopeless = post(url, body | {"truncation": "auto", "input": [*turns, longer]})
        assert hopeless.json()["error"]["code"] == "context_length_exceeded"
