"""What a chat becomes before the model reads it."""

import httpx
import pytest
from fake_engine import FakeEngine, serving, state_of

RENDER = "/v1/chat/completions/render"
MESSAGES = [
    {"role": "system", "content": [{"type": "text", "text": "é", "cache_control": {"type": "ephemeral"}}]},
    {"role": "user", "content": "question"},
]
BODY = {"model": "", "messages": MESSAGES, "temperature": 0.5, "top_k": 3, "stop": "END", "stream": True, "n": 2}


def test_the_prompt_its_tokens_and_its_places(http: httpx.Client, engine: FakeEngine):
    asked = len(engine.asked)
    told = http.post(RENDER, json=BODY).json()
    prompt = "<system>é<user>question<assistant>"
    assert (told["prompt"], bytes(told["token_ids"])) == (prompt, prompt.encode())
    assert told["breakpoints"] == [len("<system>é".encode())]
    assert told["boundaries"] == [len(text.encode()) for text in ("<system>é<user>", "<system>é<user>question")]
    assert (told["model"], told["stream"], told["priority"], told["cache_salt"]) == ("fake", True, 0, None)
    assert told["request_id"].startswith("chatcmpl-")
    assert len(engine.asked) == asked, "nothing has run"
    http.post("/v1/chat/completions", json=BODY)
    ran, *_ = engine.asked[-1]
    assert (ran["prompt"], ran["prompt_token_ids"]) == (prompt, told["token_ids"])


def test_how_it_would_be_sampled(http: httpx.Client):
    told = http.post(RENDER, json=BODY).json()
    params = told["sampling_params"]
    assert (params["temperature"], params["top_k"], params["stop"], params["n"]) == (0.5, 3, ["END"], 2)
    assert params["max_tokens"] == 256 - len(told["token_ids"])
    assert http.post(RENDER, json=BODY | {"max_tokens": 7}).json()["sampling_params"]["max_tokens"] == 7
    plain = http.post(RENDER, json={"model": "", "messages": MESSAGES}).json()["sampling_params"]
    assert (plain["temperature"], plain["top_k"]) == (0.25, 7), "the model's own"


@pytest.mark.parametrize(
    "fields",
    [
        {"model": "", "messages": []},
        {"tool_choice": "required"},
        {"temperature": -1},
        {"model": "", "messages": [MESSAGES[1]] * 40},
    ],
)
def test_what_chat_refuses_is_refused(http: httpx.Client, fields: dict):
    refused = http.post(RENDER, json=BODY | fields)
    assert refused.status_code == 400
    assert refused.json() == http.post("/v1/chat/completions", json=BODY | fields).json()


def test_it_takes_no_seat_in_the_queue():
    engine = FakeEngine(step_s=0.5, endless=True)
    with serving(state_of(engine, max_num_queued_reqs=1)) as url:
        body = {"model": "", "messages": MESSAGES[1:], "stream": True}
        with httpx.stream("POST", f"{url}/v1/chat/completions", json=body) as running:
            lines = running.iter_lines()
            next(lines)
            assert httpx.post(f"{url}{RENDER}", json=body).status_code == 200
