import httpx
import pytest
from fake_engine import BOS, TEMPLATE


def test_text_there_and_back(http: httpx.Client):
    answer = http.post("/tokenize", json={"prompt": "hé", "return_token_strs": True}).json()
    assert answer["tokens"] == [BOS, *"hé".encode()]
    assert (answer["count"], answer["max_model_len"]) == (4, 256)
    assert answer["token_strs"] == ["<s>", "h", "\ufffd", "\ufffd"]
    back = http.post("/detokenize", json={"tokens": answer["tokens"]}).json()
    assert back == {"prompt": "<s>hé"}


def test_without_special_tokens(http: httpx.Client):
    answer = http.post("/tokenize", json={"prompt": "hi", "add_special_tokens": False}).json()
    assert (answer["tokens"], answer["token_strs"]) == (list(b"hi"), None)


def test_messages(http: httpx.Client):
    answer = http.post("/tokenize", json={"messages": [{"role": "user", "content": "q"}]}).json()
    assert bytes(answer["tokens"]) == b"<user>q<assistant>"


def test_what_a_client_without_the_model_s_files_must_know(http: httpx.Client):
    told = http.get("/tokenizer_info").json()
    assert (told["bos_token"], told["eos_token"], told["chat_template"]) == ("<s>", "</s>", TEMPLATE)
    assert told["tokenizer_class"]


def test_long_text_is_read_in_a_thread(http: httpx.Client):
    assert http.post("/tokenize", json={"prompt": "x" * 30_000}).json()["count"] == 30_001


def test_text_that_no_context_can_hold_is_refused_unread(http: httpx.Client):
    answer = http.post("/tokenize", json={"prompt": "x" * 100_000})
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "context_length_exceeded"


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": []}, "prompt"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"prompt": 5}, "prompt"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": [258]}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/detokenize", {"tokens": "abc"}, "tokens"),
    ],
)
def test_refused(http: httpx.Client, path: str, body: dict, param: str):
    answer = http.post(path, json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def test_other_model(http: httpx.Client):
    assert http.post("/tokenize", json={"prompt": "a", "model": "gpt"}).status_code == 404
