"""Chat completions through the official client."""

import json

import httpx
import openai
import pytest
from fake_engine import REPLY, FakeEngine, failed_inside, serving, state_of

from milepost.sampling_params import RequestOutputKind

ASK = [{"role": "user", "content": "Where?"}]


def test_answer(client: openai.OpenAI):
    answer = client.chat.completions.create(model="fake", messages=ASK)
    assert answer.id.startswith("chatcmpl-")
    assert answer.object == "chat.completion"
    assert answer.model == "fake"
    assert answer.system_fingerprint.startswith("fp_")
    (choice,) = answer.choices
    assert (choice.index, choice.finish_reason, choice.logprobs) == (0, "stop", None)
    assert (choice.message.role, choice.message.content) == ("assistant", REPLY)
    prompt, completion = len("<user>Where?<assistant>"), len(REPLY.encode())
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (prompt, completion)
    assert answer.usage.total_tokens == prompt + completion
    assert (answer.choices[0].message.refusal, answer.choices[0].message.annotations) == (None, [])


def test_cached_tokens_are_always_told(client: openai.OpenAI):
    ask = [{"role": "user", "content": "something not asked before"}]
    told = [client.chat.completions.create(model="fake", messages=ask).usage for _ in range(2)]
    assert [usage.prompt_tokens_details.cached_tokens for usage in told] == [0, 32]
    options = {"include_usage": True}
    *_, last = client.chat.completions.create(model="fake", messages=ask, stream=True, stream_options=options)
    assert last.usage.prompt_tokens_details.cached_tokens == 32
    assert last.choices == []


def test_stream(client: openai.OpenAI):
    first, *rest = client.chat.completions.create(model="fake", messages=ASK, stream=True)
    assert first.object == "chat.completion.chunk"
    assert (first.choices[0].delta.role, first.choices[0].delta.content) == ("assistant", "")
    assert all(chunk.id == first.id and chunk.usage is None for chunk in rest)
    assert all(chunk.choices[0].delta.role is None for chunk in rest)
    texts = [chunk.choices[0].delta.content for chunk in rest]
    assert "".join(text or "" for text in texts) == REPLY
    assert "é" in texts, "two tokens, one piece of text"
    reasons = [chunk.choices[0].finish_reason for chunk in rest]
    assert reasons == [None] * (len(rest) - 1) + ["stop"]


def test_stream_on_the_wire(http: httpx.Client):
    body = {"model": "", "messages": ASK, "stream": True, "stream_options": {"include_usage": True}}
    answer = http.post("/v1/chat/completions", json=body)
    assert answer.headers["content-type"].startswith("text/event-stream")
    *events, end = answer.text.split("\n\n")
    assert end == ""
    assert events[-1] == "data: [DONE]"
    assert answer.text.count("[DONE]") == 1
    chunks = [json.loads(event.removeprefix("data: ")) for event in events[:-1]]
    assert [chunk["usage"] is None for chunk in chunks] == [True] * (len(chunks) - 1) + [False]


def test_continuous_usage(client: openai.OpenAI):
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = list(client.chat.completions.create(model="fake", messages=ASK, stream=True, stream_options=options))
    counts = [chunk.usage.completion_tokens for chunk in chunks]
    assert counts == sorted(counts)
    assert counts[-1] == len(REPLY.encode())
    assert counts[2] < counts[-1]


def test_samples(client: openai.OpenAI):
    answer = client.chat.completions.create(model="fake", messages=ASK, n=3, max_tokens=4)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert answer.usage.completion_tokens == 12
    chunks = list(client.chat.completions.create(model="fake", messages=ASK, n=3, stream=True))
    assert [chunk.choices[0].index for chunk in chunks[:3]] == [0, 1, 2]
    assert all(chunk.choices[0].delta.role == "assistant" for chunk in chunks[:3])
    for index in range(3):
        mine = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices[0].index == index]
        assert "".join(mine) == REPLY


def test_logprobs(client: openai.OpenAI):
    answer = client.chat.completions.create(
        model="fake", messages=ASK, logprobs=True, top_logprobs=3, max_tokens=5, temperature=0
    )
    content = answer.choices[0].logprobs.content
    assert [entry.token for entry in content] == ["C", "a", "f", "\ufffd", "\ufffd"]
    assert content[0].bytes == [ord("C")]
    assert content[0].logprob == -1.0
    assert [top.token for top in content[0].top_logprobs] == ["D", "C", "E"], "likeliest first"
    assert [top.logprob for top in content[0].top_logprobs] == [-0.5, -1.0, -1.5]


def test_impossible_tokens_get_a_number(client: openai.OpenAI):
    answer = client.chat.completions.create(model="fake", messages=ASK, logprobs=True, top_logprobs=20, max_tokens=1)
    assert min(top.logprob for top in answer.choices[0].logprobs.content[0].top_logprobs) > -9999.0
    raw = client.completions.create(model="fake", prompt="x", logprobs=20, max_tokens=1)
    assert min(raw.choices[0].logprobs.top_logprobs[0].values()) == -9999.0


def test_streamed_logprobs_cover_every_token(client: openai.OpenAI):
    chunks = client.chat.completions.create(model="fake", messages=ASK, logprobs=True, stream=True)
    entries = [entry for chunk in chunks if chunk.choices[0].logprobs for entry in chunk.choices[0].logprobs.content]
    assert len(entries) == len(REPLY.encode())
    assert all(entry.top_logprobs == [] for entry in entries)


def test_stop_and_length(client: openai.OpenAI):
    answer = client.chat.completions.create(model="fake", messages=ASK, stop=["Paris"])
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == ("Café in ", "stop")
    assert answer.choices[0].stop_reason == "Paris"
    answer = client.chat.completions.create(model="fake", messages=ASK, max_completion_tokens=3, max_tokens=9)
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == ("Caf", "length")


def test_every_sampling_field_arrives(client: openai.OpenAI, engine: FakeEngine):
    extra = {
        "top_k": 5,
        "min_p": 0.1,
        "repetition_penalty": 1.1,
        "stop_token_ids": [1, 2],
        "ignore_eos": True,
        "min_tokens": 2,
        "skip_special_tokens": False,
        "include_stop_str_in_output": True,
        "priority": 3,
        "cache_salt": "salt",
        "unknown_field": {"is": "ignored"},
    }
    client.chat.completions.create(model="fake", messages=ASK)
    client.chat.completions.create(
        model="fake",
        messages=ASK,
        n=2,
        temperature=0.5,
        top_p=0.9,
        presence_penalty=0.1,
        frequency_penalty=0.2,
        seed=42,
        stop="END",
        max_tokens=6,
        logit_bias={"5": -100, "7": 1.5},
        user="someone",
        extra_body=extra,
    )
    *_, (_, _, _, unsalted), (_, params, priority, salted) = engine.asked
    assert priority == 3
    assert salted != unsalted
    assert params.output_kind is RequestOutputKind.FINAL_ONLY
    assert params.logit_bias == {5: -100.0, 7: 1.5}
    assert params.stops == ("END",)
    assert (params.n, params.temperature, params.top_p, params.top_k, params.min_p) == (2, 0.5, 0.9, 5, 0.1)
    assert (params.presence_penalty, params.frequency_penalty, params.repetition_penalty) == (0.1, 0.2, 1.1)
    assert (params.seed, params.stop_token_ids, params.ignore_eos) == (42, [1, 2], True)
    assert (params.max_tokens, params.min_tokens) == (6, 2)
    assert (params.skip_special_tokens, params.include_stop_str_in_output) == (False, True)


def test_defaults_come_from_the_model_then_from_vllm(client: openai.OpenAI, engine: FakeEngine):
    client.chat.completions.create(model="fake", messages=ASK)
    params = engine.asked[-1][1]
    assert (params.temperature, params.top_k, params.top_p, params.max_tokens) == (0.25, 7, 1.0, None)


def test_nulls_mean_not_given(http: httpx.Client, engine: FakeEngine):
    names = (
        "temperature",
        "n",
        "stop",
        "max_tokens",
        "tools",
        "stream",
        "logprobs",
        "response_format",
        "seed",
    )
    answer = http.post("/v1/chat/completions", json={"model": "", "messages": ASK} | dict.fromkeys(names))
    assert answer.status_code == 200
    assert engine.asked[-1][1].temperature == 0.25


def prompt_of(http: httpx.Client, engine: FakeEngine, **body: object) -> str:
    answer = http.post("/v1/chat/completions", json={"model": "", "messages": ASK} | body)
    assert answer.status_code == 200, answer.text
    prompt = engine.asked[-1][0]
    assert bytes(prompt["prompt_token_ids"]).decode() == prompt["prompt"], "a template brings its own special tokens"
    return prompt["prompt"]


def test_template_fields(http: httpx.Client, engine: FakeEngine):
    tool = {"type": "function", "function": {"name": "weather"}}
    assert prompt_of(http, engine) == "<user>Where?<assistant>"
    assert prompt_of(http, engine, tools=[tool], tool_choice="auto") == "<user>Where?[weather]<assistant>"
    assert prompt_of(http, engine, add_generation_prompt=False) == "<user>Where?"
    assert prompt_of(http, engine, continue_final_message=True) == "<user>Where?"
    assert prompt_of(http, engine, chat_template_kwargs={"think": 1}) == "<user>Where?[think=1]<assistant>"


def test_content_parts_and_null_content(http: httpx.Client, engine: FakeEngine):
    messages = [
        {"role": "system", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": None, "tool_calls": []},
        {"role": "user", "content": "q", "name": "someone"},
    ]
    assert prompt_of(http, engine, messages=messages) == "<system>a\nb<assistant><user>q<assistant>"


def test_echo_continues_the_last_message(client: openai.OpenAI):
    messages = [*ASK, {"role": "assistant", "content": "In a "}]
    extra = {"echo": True, "continue_final_message": True}
    answer = client.chat.completions.create(model="fake", messages=messages, extra_body=extra)
    assert answer.choices[0].message.content == "In a " + REPLY
    chunks = client.chat.completions.create(model="fake", messages=messages, extra_body=extra, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "In a " + REPLY


def test_ids_of_tokens(client: openai.OpenAI):
    extra = {"return_token_ids": True}
    whole = client.chat.completions.create(model="fake", messages=ASK, extra_body=extra).to_dict()
    assert bytes(whole["prompt_token_ids"]) == b"<user>Where?<assistant>"
    assert bytes(whole["choices"][0]["token_ids"]) == REPLY.encode()
    streamed = client.chat.completions.create(model="fake", messages=ASK, extra_body=extra, stream=True)
    first, *rest = (chunk.to_dict() for chunk in streamed)
    assert first["prompt_token_ids"] == whole["prompt_token_ids"]
    told = [token for chunk in rest for token in chunk["choices"][0]["token_ids"]]
    assert bytes(told) == REPLY.encode(), "half a character's, too"
    assert not any("prompt_token_ids" in chunk for chunk in rest)
    plain = client.chat.completions.create(model="fake", messages=ASK)
    assert "token_ids" not in plain.to_dict()["choices"][0]


def test_prompt_logprobs(client: openai.OpenAI):
    answer = client.chat.completions.create(model="fake", messages=ASK, extra_body={"prompt_logprobs": 1})
    first, second, *_ = answer.prompt_logprobs
    assert first is None
    assert second[str(ord("u"))] == {"logprob": -1.0, "rank": 2, "decoded_token": "u"}


@pytest.mark.parametrize("stream", [False, True])
def test_no_tokens_only_fill_the_cache(client: openai.OpenAI, stream: bool):
    options = {"stream_options": {"include_usage": True}} if stream else {}
    answer = client.chat.completions.create(
        model="fake", messages=ASK, max_completion_tokens=0, stream=stream, **options
    )
    *parts, last = answer if stream else (answer, answer)
    choice = parts[-1].choices[0]
    told = [part.choices[0].delta.content for part in parts] if stream else [choice.message.content]
    assert ("".join(text or "" for text in told), choice.finish_reason) == ("", "length")
    assert last.usage.completion_tokens == 0 < last.usage.prompt_tokens


REFUSED = [
    ({"n": 10_000}, "n"),
    ({"n": 0}, "n"),
    ({"temperature": -1}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"max_tokens": -1}, "max_tokens"),
    ({"max_tokens": 10**30}, "max_tokens"),
    ({"messages": []}, "messages"),
    ({"messages": "hello"}, "messages"),
    ({"messages": [{"content": "x"}]}, "messages"),
    ({"messages": [{"role": "asistant", "content": "x"}]}, "messages"),
    ({"messages": [{"role": "user", "content": None}]}, "messages"),
    ({"messages": [{"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "x"}}]}]}, "messages"),
    ({"messages": [{"role": "user", "content": "break the template"}]}, "messages"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"prompt_logprobs": -1}, "prompt_logprobs"),
    ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"response_format": {"type": "xml"}}, "response_format"),
    ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format"),
    ({"structured_outputs": {"regex": 3}}, "structured_outputs"),
    ({"structured_outputs": {}}, "structured_outputs"),
    ({"allowed_token_ids": [1]}, "allowed_token_ids"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"function_call": {"name": "f"}}, "function_call"),
    ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
    ({"logit_bias": {"x": 1}}, "logit_bias"),
    ({"logit_bias": {"5": 101}}, "logit_bias"),
    ({"logit_bias": {"5": "high"}}, "logit_bias"),
    ({"stop": ""}, "stop"),
    ({"stop": [1]}, "stop"),
    ({"stop": ["a"] * 100}, "stop"),
    ({"seed": 2**70}, "seed"),
    ({"add_generation_prompt": True, "continue_final_message": True}, "continue_final_message"),
    ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
    ({"stream": "perhaps"}, "stream"),
]


@pytest.mark.parametrize(("change", "param"), REFUSED, ids=[f"{param}-{i}" for i, (_, param) in enumerate(REFUSED)])
def test_refused(http: httpx.Client, change: dict, param: str):
    answer = http.post("/v1/chat/completions", json={"model": "", "messages": ASK} | change)
    error = answer.json()["error"]
    assert answer.status_code == 400
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param
    assert "\n" not in error["message"]


def test_accepted_formats(http: httpx.Client):
    for change in ({"response_format": {"type": "text"}}, {"tool_choice": "none"}, {"guided_json": None}, {"stop": []}):
        assert http.post("/v1/chat/completions", json={"model": "", "messages": ASK} | change).status_code == 200


def test_too_long_for_the_context(client: openai.OpenAI):
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="fake", messages=[{"role": "user", "content": "x" * 300}])
    assert caught.value.code == "context_length_exceeded"
    assert "maximum context length is 256 tokens" in caught.value.message
    assert "Please reduce the length of the messages or completion." in caught.value.message
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="fake", messages=ASK, max_tokens=250)
    assert caught.value.code == "context_length_exceeded"
    assert f"you requested {len('<user>Where?<assistant>') + 250} tokens" in caught.value.message
    room = 256 - len("<user>Where?<assistant>")
    client.chat.completions.create(model="fake", messages=ASK, max_tokens=room)


def test_other_model(client: openai.OpenAI):
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="gpt", messages=ASK)
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")


def test_no_tokenizer():
    with serving(state_of(FakeEngine(with_text=False))) as url:
        answer = httpx.post(f"{url}/v1/chat/completions", json={"model": "", "messages": ASK})
    assert answer.status_code == 400
    assert "no chat template" in answer.json()["error"]["message"]
    assert "--chat-template" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("failure", "told"),
    [
        (failed_inside(), "the sampler failed"),
        (ZeroDivisionError("with the user's secret"), "the server failed on this request"),
    ],
)
def test_failure_inside(failure: Exception, told: str, caplog: pytest.LogCaptureFixture):
    """Before the first token: a 500. After it: one error event, and the end. The server goes on."""
    engine = FakeEngine()
    engine.fail = failure
    with serving(state_of(engine)) as url, openai.OpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0) as client:
        for stream in (False, True):
            with pytest.raises(openai.InternalServerError, match=told):
                client.chat.completions.create(model="", messages=ASK, stream=stream)
        engine.fail_after = 5
        answer = httpx.post(f"{url}/v1/chat/completions", json={"model": "", "messages": ASK, "stream": True})
        *_, before, error, done, end = answer.text.split("\n\n")
        assert "delta" in before
        assert told in json.loads(error.removeprefix("data: "))["error"]["message"]
        assert (done, end) == ("data: [DONE]", "")
        assert answer.text.count("[DONE]") == 1
        with pytest.raises(openai.APIError, match=told):
            list(client.chat.completions.create(model="", messages=ASK, stream=True))
        engine.fail = None
        assert client.chat.completions.create(model="", messages=ASK).choices[0].message.content == REPLY
    assert "secret" not in caplog.text
    assert type(failure).__name__ in caplog.text
