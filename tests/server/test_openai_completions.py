"""The older completions API through the official client."""

import json

import httpx
import openai
import pytest
from fake_engine import BOS, REPLY, FakeEngine, serving, state_of

NUM_REPLY = len(REPLY.encode())


def test_answer(client: openai.OpenAI, engine: FakeEngine):
    answer = client.completions.create(model="fake", prompt="In France", max_tokens=100)
    assert answer.id.startswith("cmpl-")
    assert answer.object == "text_completion"
    (choice,) = answer.choices
    assert (choice.index, choice.text, choice.finish_reason, choice.logprobs) == (0, REPLY, "stop", None)
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (1 + len("In France"), NUM_REPLY)
    assert answer.usage.prompt_tokens_details.cached_tokens == 0
    assert engine.asked[-1][0]["prompt_token_ids"][0] == BOS


def test_16_tokens_unless_told(client: openai.OpenAI, engine: FakeEngine):
    client.completions.create(model="fake", prompt="x")
    assert engine.asked[-1][1].max_tokens == 16
    client.completions.create(model="fake", prompt="x", max_tokens=None)
    assert engine.asked[-1][1].max_tokens is None


@pytest.mark.parametrize(
    ("prompt", "read"),
    [
        ("ab", [[BOS, 97, 98]]),
        (["ab"], [[BOS, 97, 98]]),
        ([97, 98], [[97, 98]]),
        ([[97], [98, 99]], [[97], [98, 99]]),
        (["a", "b", "c"], [[BOS, 97], [BOS, 98], [BOS, 99]]),
    ],
)
def test_prompt_shapes(client: openai.OpenAI, engine: FakeEngine, prompt: object, read: list[list[int]]):
    answer = client.completions.create(model="fake", prompt=prompt, max_tokens=2)
    asked = [prompt["prompt_token_ids"] for prompt, *_ in engine.asked[-len(read) :]]
    assert sorted(asked) == sorted(read)
    assert [choice.index for choice in answer.choices] == list(range(len(read)))
    assert answer.usage.prompt_tokens == sum(map(len, read))
    assert answer.usage.completion_tokens == 2 * len(read)


def test_several_prompts_and_samples(client: openai.OpenAI):
    answer = client.completions.create(model="fake", prompt=["a", "b"], n=3, max_tokens=2, echo=True)
    assert [choice.index for choice in answer.choices] == list(range(6))
    assert [choice.text for choice in answer.choices] == ["aCa"] * 3 + ["bCa"] * 3
    chunks = list(client.completions.create(model="fake", prompt=["a", "b"], n=3, max_tokens=2, echo=True, stream=True))
    for index, text in enumerate(["aCa"] * 3 + ["bCa"] * 3):
        mine = [chunk.choices[0] for chunk in chunks if chunk.choices[0].index == index]
        assert "".join(choice.text for choice in mine) == text
        assert [choice.finish_reason for choice in mine][-1] == "length"


def test_stream(client: openai.OpenAI):
    options = {"include_usage": True}
    chunks = list(client.completions.create(model="fake", prompt="x", stream=True, stream_options=options))
    *texts, last = chunks
    assert "".join(chunk.choices[0].text for chunk in texts) == REPLY
    assert all(chunk.usage is None for chunk in texts)
    assert (last.choices, last.usage.completion_tokens) == ([], NUM_REPLY)
    assert last.usage.prompt_tokens_details.cached_tokens == 0


def test_logprobs(client: openai.OpenAI):
    answer = client.completions.create(model="fake", prompt="x", logprobs=2, max_tokens=3)
    logprobs = answer.choices[0].logprobs
    assert logprobs.tokens == ["C", "a", "f"]
    assert logprobs.token_logprobs == [-1.0, -1.0, -1.0]
    assert logprobs.text_offset == [0, 1, 2]
    assert logprobs.top_logprobs[0] == {"C": -1.0, "D": -0.5, "E": -1.5}


def test_echo_with_logprobs_scores_the_prompt(client: openai.OpenAI):
    answer = client.completions.create(model="fake", prompt=[97, 98], logprobs=0, echo=True, max_tokens=2)
    choice = answer.choices[0]
    assert choice.text == "abCa"
    assert choice.logprobs.tokens == ["a", "b", "C", "a"]
    assert choice.logprobs.token_logprobs == [None, -1.0, -1.0, -1.0]
    assert choice.logprobs.top_logprobs[:2] == [None, {"b": -1.0}]
    assert choice.logprobs.text_offset == [0, 1, 2, 3]
    chunks = client.completions.create(model="fake", prompt=[97, 98], logprobs=0, echo=True, max_tokens=2, stream=True)
    parts = [chunk.choices[0].logprobs for chunk in chunks]
    for name in ("tokens", "token_logprobs", "text_offset"):
        assert [entry for part in parts for entry in getattr(part, name)] == getattr(choice.logprobs, name)


@pytest.mark.parametrize("stream", [False, True])
def test_echo_alone_generates_nothing(http: httpx.Client, stream: bool):
    body = {"model": "", "prompt": "ab", "echo": True, "max_tokens": 0, "logprobs": 1, "stream": stream}
    if stream:
        body["stream_options"] = {"include_usage": True}
    text = http.post("/v1/completions", json=body).text
    answer, usage = (
        (json.loads(part.removeprefix("data: ")) for part in text.split("\n\n")[:2])
        if stream
        else (json.loads(text),) * 2
    )
    choice = answer["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("ab", "length")
    assert choice["logprobs"]["tokens"] == ["<s>", "a", "b"]
    assert usage["usage"]["completion_tokens"] == 0


@pytest.mark.parametrize("stream", [False, True])
def test_no_tokens_only_fill_the_cache(client: openai.OpenAI, stream: bool):
    options = {"stream_options": {"include_usage": True}} if stream else {}
    answer = client.completions.create(model="fake", prompt="fill", max_tokens=0, n=2, stream=stream, **options)
    *parts, last = answer if stream else (answer, answer)
    choices = [choice for part in parts for choice in part.choices]
    assert [(choice.text, choice.finish_reason, choice.index) for choice in choices] == [
        ("", "length", 0),
        ("", "length", 1),
    ]
    assert (last.usage.prompt_tokens, last.usage.completion_tokens) == (5, 0)


def test_ids_of_tokens(client: openai.OpenAI):
    ask = {"model": "fake", "prompt": [97, 98], "max_tokens": 64, "extra_body": {"return_token_ids": True}}
    (choice,) = client.completions.create(**ask).to_dict()["choices"]
    assert (choice["prompt_token_ids"], bytes(choice["token_ids"])) == ([97, 98], REPLY.encode())
    chunks = [chunk.to_dict()["choices"][0] for chunk in client.completions.create(**ask, stream=True)]
    assert [chunk.get("prompt_token_ids") for chunk in chunks] == [[97, 98], *[None] * (len(chunks) - 1)]
    assert bytes(token for chunk in chunks for token in chunk["token_ids"]) == REPLY.encode()
    assert "token_ids" not in client.completions.create(model="fake", prompt="x").to_dict()["choices"][0]


def test_prompt_logprobs(client: openai.OpenAI):
    answer = client.completions.create(model="fake", prompt=[97, 98], extra_body={"prompt_logprobs": 0})
    assert answer.choices[0].prompt_logprobs == [None, {"98": {"logprob": -1.0, "rank": 2, "decoded_token": "b"}}]


REFUSED = [
    ({}, "prompt"),
    ({"prompt": None}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": [[]]}, "prompt"),
    ({"prompt": 5}, "prompt"),
    ({"prompt": [True]}, "prompt"),
    ({"prompt": ["a", 1]}, "prompt"),
    ({"prompt": [1, "a"]}, "prompt"),
    ({"prompt": [[1], "a"]}, "prompt"),
    ({"prompt": [1.5]}, "prompt"),
    ({"prompt": {"text": "a"}}, "prompt"),
    ({"prompt": [258]}, "prompt"),
    ({"prompt": [-1]}, "prompt"),
    ({"prompt": [10**30]}, "prompt"),
    ({"prompt": ["a"] * 2049}, "prompt"),
    ({"prompt": ["a"] * 100, "n": 100}, "n"),
    ({"prompt": "a", "n": 10_000}, "n"),
    ({"prompt": "a", "suffix": "b"}, "suffix"),
    ({"prompt": "a", "logprobs": 21}, "logprobs"),
    ({"prompt": "a", "logprobs": -1}, "logprobs"),
    ({"prompt": "a", "max_tokens": -1}, "max_tokens"),
    ({"prompt": "a", "max_tokens": 0, "min_tokens": 1}, "min_tokens"),
    ({"prompt": "a", "max_tokens": "many"}, "max_tokens"),
    ({"prompt": "a", "stop_token_ids": [-1]}, "stop_token_ids"),
    ({"prompt": "a", "use_beam_search": True}, "use_beam_search"),
    ({"prompt": "a", "stream": True, "prompt_logprobs": 1}, "prompt_logprobs"),
]


@pytest.mark.parametrize(("body", "param"), REFUSED, ids=[f"{param}-{i}" for i, (_, param) in enumerate(REFUSED)])
def test_refused(http: httpx.Client, body: dict, param: str):
    answer = http.post("/v1/completions", json={"model": ""} | body)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param


def test_too_long_for_the_context(http: httpx.Client):
    for body in (
        {"model": "", "prompt": "x" * 256},
        {"model": "", "prompt": ["y", "x" * 256]},
        {"model": "", "prompt": "x", "max_tokens": 255},
    ):
        error = http.post("/v1/completions", json=body).json()["error"]
        assert (error["code"], error["param"]) == ("context_length_exceeded", "prompt")


def test_ids_work_without_a_tokenizer():
    engine = FakeEngine(with_text=False)
    with serving(state_of(engine)) as url, httpx.Client(base_url=url) as http:
        body = {"model": "", "prompt": [1, 2], "max_tokens": 2, "echo": True, "logprobs": 0}
        answer = http.post("/v1/completions", json=body).json()
        assert answer["choices"][0]["text"] == ""
        assert answer["choices"][0]["logprobs"]["tokens"][0] == "token_id:1"
        refused = http.post("/v1/completions", json={"model": "", "prompt": "text"})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "prompt")
        refused = http.post("/v1/completions", json={"model": "", "prompt": [1], "stop": "a"})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "stop")


def test_one_bad_prompt_of_many_refuses_all(http: httpx.Client, engine: FakeEngine):
    answer = http.post("/v1/completions", json={"model": "", "prompt": [[1], [2], [999]], "stream": True})
    assert answer.status_code == 400
    assert not engine.running


def test_best_of_is_ignored(http: httpx.Client):
    assert len(http.post("/v1/completions", json={"model": "", "prompt": "a", "best_of": 4}).json()["choices"]) == 1
