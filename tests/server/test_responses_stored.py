"""Responses that are kept, gone on from, fetched, deleted and cancelled; and what one key sees of another's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx
import openai
import pytest
from fake_engine import FakeEngine, serving, state_of, wait_until
from test_responses import CALL, SCRIPT, TEMPLATE, TOOLS, talking
from test_stream import send

from milepost.server import responses_store
from milepost.server.responses_store import EXTRA_BYTES, ResponseStore, Turn, history, new_turn

RESPONSES = "/v1/responses"


@pytest.fixture(scope="module")
def engine() -> FakeEngine:
    engine = FakeEngine(template=TEMPLATE)
    engine.max_model_len = 4096
    return engine


def client_of(url: str, key: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0)


def test_a_conversation_by_ids(one: openai.OpenAI, engine: FakeEngine) -> None:
    engine.reply = "A."
    first = one.responses.create(model="", input="q1", instructions="Be brief.")
    second = one.responses.create(model="", input="q2", previous_response_id=first.id)
    assert engine.asked[-1][0]["prompt"] == "<user>q1<assistant>A.<user>q2<assistant>", (
        "instructions are not carried on"
    )
    assert second.previous_response_id == first.id
    forks = [one.responses.create(model="", input=text, previous_response_id=second.id) for text in ("q3", "other")]
    assert engine.asked[-1][0]["prompt"].endswith("<assistant>A.<user>q2<assistant>A.<user>other<assistant>")
    listed = one.responses.input_items.list(forks[0].id, order="asc")
    texts = [text_of(item) for item in listed]
    assert texts == ["q1", "A.", "q2", "A.", "q3"]
    assert listed.data[1].id == first.output[0].id
    again = one.responses.create(model="", input=[], previous_response_id=second.id)
    assert again.status == "completed", "no new input"


def test_calls_and_their_results_go_on() -> None:
    with talking(SCRIPT.split(f"\n{CALL.replace('Paris', 'Rome')}")[0]) as (client, engine):
        fields: dict[str, Any] = {"model": "", "tools": TOOLS}
        first = client.responses.create(input="Weather?", **fields)
        before = engine.asked[-1][0]["prompt"]
        call = first.output[-1]
        result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}  # type: ignore[union-attr]
        client.responses.create(input=[result], previous_response_id=first.id, **fields)
        prompt = engine.asked[-1][0]["prompt"]
        assert prompt.startswith(f"{before}<think>\nIn é?\n</think>\n\nI ask.\n<tool_call>\n")
        assert prompt.endswith("</tool_call><tool>rain<assistant>")
        sent_back: Any = [{"role": "user", "content": "Weather?"}, *first.to_dict()["output"], result]  # type: ignore[misc]
        client.responses.create(input=sent_back, store=False, **fields)
        assert engine.asked[-1][0]["prompt"] == prompt, "the same, for whoever keeps the items"
        named: Any = [sent_back[0], *({"type": "item_reference", "id": item.id} for item in first.output), result]
        client.responses.create(input=named, **fields)
        assert engine.asked[-1][0]["prompt"] == prompt, "and by their ids"


def test_reasoning_that_clients_keep_sealed() -> None:
    """Some send back `encrypted_content` and leave the text out."""
    with talking(SCRIPT) as (client, engine):
        fields: dict[str, Any] = {"model": "", "include": ["reasoning.encrypted_content"], "store": False}
        thought, message = (item.to_dict() for item in client.responses.create(input="q", **fields).output)
        thought.pop("content")
        foreign = {"type": "reasoning", "summary": [], "encrypted_content": "gAAAA"}
        for items, told in (([thought, message], "<think>\nIn é?\n</think>\n\n"), ([foreign, message], "")):
            client.responses.create(input=items, **fields)  # type: ignore[arg-type]
            assert engine.asked[-1][0]["prompt"].startswith(f"<assistant>{told}I ask."), items
        client.responses.create(input=[foreign, {"role": "user", "content": "q"}], **fields)  # type: ignore[list-item]
        assert engine.asked[-1][0]["prompt"] == "<user>q<assistant>"


def test_what_is_kept_can_be_fetched_and_deleted(one: openai.OpenAI, keyed_url: str) -> None:
    response = one.responses.create(model="", input="q", metadata={"a": "b"})
    assert one.responses.retrieve(response.id).to_dict() == response.to_dict()
    assert one.responses.cancel(response.id).status == "completed", "too late, and no error"
    headers = {"Authorization": "Bearer one"}
    deleted = httpx.delete(f"{keyed_url}{RESPONSES}/{response.id}", headers=headers, timeout=60)
    assert deleted.json() == {"id": response.id, "object": "response", "deleted": True}
    with pytest.raises(openai.NotFoundError, match="not found"):
        one.responses.delete(response.id)
    assert_unknown(one, response.id)
    with pytest.raises(openai.BadRequestError, match="streamed"):
        list(one.responses.retrieve(response.id, stream=True))


def test_what_is_not_to_be_stored_is_not(one: openai.OpenAI) -> None:
    response = one.responses.create(model="", input="q", store=False)
    assert same_field(response, "store") is False
    assert_unknown(one, response.id)


def test_another_key_finds_nothing(one: openai.OpenAI, keyed_url: str) -> None:
    response = one.responses.create(model="", input="q")
    with client_of(keyed_url, "two") as two:
        assert_unknown(two, response.id)
        with pytest.raises(openai.NotFoundError):
            two.responses.delete(response.id)
        reference: Any = [{"type": "item_reference", "id": response.output[0].id}]
        with pytest.raises(openai.NotFoundError):
            two.responses.create(model="", input=reference)
    assert one.responses.retrieve(response.id).id == response.id
    shared = state_of(FakeEngine(), api_keys=("one", "two"), cache_scope="global")
    with serving(shared) as url, client_of(url, "one") as mine, client_of(url, "two") as other:
        assert_unknown(other, mine.responses.create(model="", input="q").id)


def test_an_item_can_be_named_once(one: openai.OpenAI) -> None:
    said = one.responses.create(model="", input="q").output[0]
    named: Any = [{"type": "item_reference", "id": said.id}, {"role": "user", "content": "and?"}]
    one.responses.create(model="", input=named)
    with pytest.raises(openai.BadRequestError, match="Duplicate item found with id"):
        one.responses.create(model="", input=[*named, named[0]])


def text_of(item: Any) -> str:
    """Of a message's only part."""
    text: str = item.content[0].text
    return text


def assert_unknown(client: openai.OpenAI, response_id: str) -> None:
    for ask in (client.responses.retrieve, client.responses.cancel, client.responses.input_items.list):
        with pytest.raises(openai.NotFoundError):
            ask(response_id)
    for stream in (False, True):
        with pytest.raises(openai.NotFoundError) as found:
            client.responses.create(model="", input="q", previous_response_id=response_id, stream=stream)
        assert found.value.param == "previous_response_id"
    with pytest.raises(openai.NotFoundError):
        client.responses.input_tokens.count(model="", input="q", previous_response_id=response_id)


def same_field(response: Any, name: str) -> Any:
    return response.to_dict()[name]


def test_pages_of_input_items(one: openai.OpenAI) -> None:
    items: Any = [{"role": "user", "content": f"q{i}"} for i in range(5)]
    response = one.responses.create(model="", input=items)
    page = one.responses.input_items.list(response.id, limit=2)
    assert [text_of(item) for item in page.data] == ["q4", "q3"]
    assert page.has_more
    everything = [text_of(item) for item in page]
    assert everything == ["q4", "q3", "q2", "q1", "q0"]
    for wrong in ({"limit": 0}, {"limit": 101}, {"extra_query": {"order": "random"}}):
        with pytest.raises(openai.BadRequestError):
            one.responses.input_items.list(response.id, **wrong)  # type: ignore[arg-type]


def test_counting_says_what_a_request_will(one: openai.OpenAI) -> None:
    first = one.responses.create(model="", input="q1")
    fields: dict[str, Any] = {"model": "", "instructions": "Be brief.", "input": "q2", "tools": TOOLS}
    fields["previous_response_id"] = first.id
    counted = one.responses.input_tokens.count(**fields)
    usage = one.responses.create(**fields).usage
    assert usage is not None
    assert (counted.object, counted.input_tokens) == ("response.input_tokens", usage.input_tokens)


@contextmanager
def endless() -> Iterator[tuple[openai.OpenAI, FakeEngine]]:
    engine = FakeEngine(step_s=0.02, endless=True)
    with serving(state_of(engine)) as url, client_of(url, "none") as client:
        yield client, engine


def test_a_stream_is_cancelled() -> None:
    with endless() as (client, engine):
        stream = client.responses.create(model="", input="q", stream=True)
        created, *_ = (next(stream) for _ in range(6))
        response_id = created.response.id  # type: ignore[union-attr]
        assert client.responses.retrieve(response_id).status == "in_progress"
        with pytest.raises(openai.BadRequestError, match="still being made"):
            client.responses.create(model="", input="q", previous_response_id=response_id)
        cancelled = client.responses.cancel(response_id)
        *_, last = stream
        assert last.type == "response.incomplete"
        assert (cancelled.status, cancelled.completed_at) == ("cancelled", None)
        assert last.response.to_dict() == cancelled.to_dict() == client.responses.retrieve(response_id).to_dict()
        assert cancelled.output_text.startswith("C")
        assert cancelled.output[0].to_dict()["status"] == "incomplete"
        wait_until(lambda: not engine.running)


def test_a_whole_answer_is_cancelled() -> None:
    """Its id is that of the engine's request: nobody else knows it before the end."""
    with endless() as (client, engine), ThreadPoolExecutor() as pool:
        asked = pool.submit(client.responses.create, model="", input="q")
        wait_until(lambda: bool(engine.running))
        (response_id,) = engine.running
        assert client.responses.cancel(response_id).status == "cancelled"
        answer = asked.result()
        assert (answer.id, answer.status, answer.output) == (response_id, "cancelled", [])
        assert not engine.running


def test_a_deleted_one_goes_on_and_is_not_kept() -> None:
    with endless() as (client, _):
        stream = client.responses.create(model="", input="q", stream=True, max_output_tokens=20)
        response_id = next(stream).response.id  # type: ignore[union-attr]
        client.responses.delete(response_id)
        with pytest.raises(openai.NotFoundError):
            client.responses.delete(response_id)
        *_, last = stream
        assert last.type == "response.incomplete"
        assert_unknown(client, response_id)


def test_whoever_hangs_up_cancels() -> None:
    """A stream's client was told of the response, and may ask for it."""
    with endless() as (client, engine):
        with client.responses.create(model="", input="q", stream=True) as stream:
            response_id = next(stream).response.id  # type: ignore[union-attr]
        wait_until(lambda: not engine.running)
        wait_until(lambda: client.responses.retrieve(response_id).status == "cancelled")


@pytest.mark.parametrize("stream", [False, True])
def test_what_nobody_was_told_of_is_not_kept(stream: bool) -> None:
    with endless() as (client, engine):
        engine.step_s = 60
        with send(str(client.base_url), RESPONSES, {"model": "", "input": "q", "stream": stream}):
            wait_until(lambda: bool(engine.running))
            (response_id,) = engine.running
        wait_until(lambda: not engine.running)
        assert_unknown(client, response_id)


def turn(name: str, parent: Turn | None = None, num_chars: int = 0) -> Turn:
    item = {"id": f"msg_{name}", "type": "message", "text": "x" * num_chars}
    return new_turn({"id": name, "output": [item]}, [{"id": f"in_{name}"}], parent)


def test_the_least_recently_used_go_first() -> None:
    store = ResponseStore(max_bytes=10**9, max_responses=2)
    for name in "ab":
        store.add(turn(name))
    assert store.get("a") is not None
    store.add(turn("c"))
    assert [name for name in "abc" if store.get(name)] == ["a", "c"]
    assert store.output_items()("msg_b") is None
    assert store.output_items()("msg_a") == {"id": "msg_a", "type": "message", "text": ""}


def test_bytes_are_bounded() -> None:
    store = ResponseStore(max_bytes=10 * (EXTRA_BYTES + 1000), max_responses=1000)
    for i in range(50):
        store.add(turn(str(i), num_chars=800))
        assert store.num_bytes <= store.max_bytes
    assert store.get("49") is not None
    assert store.get("0") is None
    store.add(turn("huge", num_chars=10**6))
    assert (store.num_bytes, store.get("huge")) == (0, None), "more than there may be"


def test_a_conversation_is_held_by_its_last_response() -> None:
    """Each item counts once, and goes with the last that needs it."""
    store = ResponseStore(max_bytes=10**9, max_responses=1)
    parent = None
    for i in range(5):
        parent = turn(str(i), parent)
        store.add(parent)
    assert store.get("3") is None
    assert [item["id"] for item in history(store.get("4"))] == [
        f"{kind}_{i}" for i in range(5) for kind in ("in", "msg")
    ]
    assert store.num_bytes == 5 * parent.num_bytes  # type: ignore[union-attr]
    assert store.output_items()("msg_0") is not None
    assert store.remove("4")
    assert (store.num_bytes, store.output_items()("msg_0")) == (0, None)
    store.add(turn("5", parent))
    assert store.num_bytes == 6 * parent.num_bytes, "one that had gone is held again"  # type: ignore[union-attr]
    assert [store.remove("5") for _ in range(2)] == [True, False]
    assert store.num_bytes == 0


def test_a_response_is_read_once_for_all_its_items(monkeypatch: pytest.MonkeyPatch) -> None:
    items = [{"id": f"msg_{i}"} for i in range(9)]
    store, num_read = ResponseStore(), 0
    store.add(new_turn({"id": "resp", "output": items}, [], None))

    def counted(value: bytes) -> Any:
        nonlocal num_read
        num_read += 1
        return json.loads(value)

    monkeypatch.setattr(responses_store, "from_json", counted)
    find = store.output_items()
    assert [find(item["id"]) for item in items] == items
    assert (find("msg_9"), num_read) == (None, 1)
