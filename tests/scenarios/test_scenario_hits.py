"""A: hits where other engines have none. Each is played for every kind of state, over the engine and over HTTP; all of
it with `pytest -m full tests/scenarios`."""

from __future__ import annotations

import pytest
from client import Refused
from stage import Serve

from milepost.errors import ConfigError

GRID = 64


def on_grid(num_tokens: int) -> int:
    return num_tokens // GRID * GRID


def test_a1_the_same_prompt_three_times(serve: Serve) -> None:
    client = serve()
    lengths = [1, 2, 16, 17, 63, 64, 65, 128, 129, 200, 300] if serve.small else range(1, 301)
    for length in lengths:
        prompt = client.text(length)
        _, second, third = (client.ask(prompt) for _ in range(3))
        assert second.resumed >= on_grid(length - 1)
        assert third.resumed >= on_grid(length - 1)


def test_a2_a_prefix_and_fresh_questions(serve: Serve) -> None:
    client = serve()
    prefix = client.text(480)
    answers = [client.ask(prefix + client.text(40)) for _ in range(8)]
    assert all(answer.resumed >= 448 for answer in answers[1:])


@pytest.mark.parametrize("num_shared", [1500, 1600])
def test_a3_groups_in_turn(serve: Serve, num_shared: int) -> None:
    """The small version has 3 groups and 9 requests."""
    client = serve()
    num_groups, num_requests = serve.scaled(3, 8), serve.scaled(9, 64)
    prefixes = [client.text(num_shared) for _ in range(num_groups)]
    for number in range(num_requests):
        answer = client.ask(prefixes[number % num_groups] + client.text(2200 - num_shared))
        assert number < num_groups or answer.resumed >= on_grid(num_shared)


def test_a4_short_and_long_suffixes(serve: Serve) -> None:
    client = serve()
    prefix = client.text(6476)
    client.ask(prefix + client.text(3))
    for length in (40, 376, 1296):
        assert client.ask(prefix + client.text(length)).resumed >= 6464


def test_a5_less_and_less_in_common(serve: Serve) -> None:
    client = serve()
    text = client.text(6000)
    client.ask(text)
    assert client.ask(text[:5120] + client.text(880)).resumed >= 5120
    assert client.ask(text[:4992] + client.text(1008)).resumed >= 4992


def test_a6_a_timestamp_that_changes_at_the_end(serve: Serve) -> None:
    client = serve()
    constant = client.text(700)
    client.ask(constant + client.text(8))
    for _ in range(4):
        assert client.ask(constant + client.text(8)).resumed >= on_grid(700)


def test_a7_each_turn_of_a_chat_computes_what_is_new(serve: Serve) -> None:
    """Every fourth turn brings a tool's result, ten times as long. The last token of an answer counts as new: it was
    drawn, and no row of it was computed."""
    client = serve()
    prompt = client.text(150)
    answer = client.ask(prompt, 50)
    for turn in range(1, serve.scaled(6, 30)):
        new = client.text(200 if turn % 4 == 0 else 20)
        answer = client.ask(answer.text + new, serve.scaled(20, 50))
        assert answer.recomputed < GRID + len(new) + 1 + 1


def test_a8_a_client_that_drops_the_reasoning(serve: Serve) -> None:
    client = serve()
    prompt, before = client.text(200), 0
    for turn in range(serve.scaled(4, 10)):
        answer = client.ask(prompt, 90)
        assert turn == 0 or answer.resumed >= on_grid(before)
        reasoning, told = answer.tokens[:70], answer.tokens[70:]
        assert reasoning != told
        before, prompt = len(prompt), prompt + told + client.text(30)


def test_a9_regenerated_edited_deleted(serve: Serve) -> None:
    client = serve()
    text, turns = client.text(100), []
    for _ in range(serve.scaled(4, 8)):
        turns.append(len(text))
        text = client.ask(text, 40).text + client.text(90)
    client.ask(text)
    assert client.ask(text).resumed >= on_grid(len(text) - 1), "regenerated"
    last = len(text) - 90
    assert client.ask(text[:last] + client.text(90)).resumed >= on_grid(last), "the last turn edited"
    for place in turns[1:]:
        edited = text[: place - 30] + client.text(30) + text[place:]
        assert client.ask(edited).resumed >= on_grid(place - 30)
        deleted = text[: place - 90] + text[place:]
        assert client.ask(deleted).resumed >= on_grid(place - 90)


def test_a10_no_minimum_length_beyond_the_grid(serve: Serve) -> None:
    client = serve()
    for length in range(20, 301, serve.scaled(40, 7)):
        prompt = client.text(length)
        client.ask(prompt)
        assert client.ask(prompt).resumed >= on_grid(length - 1)


def test_a11_as_many_hits_at_once_as_one_by_one(serve: Serve) -> None:
    one_by_one, at_once = serve(), serve()
    prefix = one_by_one.text(500)
    prompts = [prefix + one_by_one.text(50) for _ in range(8)]
    first = [one_by_one.ask(prompt).resumed for prompt in prompts]
    second = [answer.resumed for answer in at_once.ask_at_once(prompts)]
    assert sorted(first) == sorted(second), "which of the eight comes first is the network's choice"


@pytest.mark.parametrize("num_steps", [0, 1, 5])
def test_a12_a_prefix_that_another_is_computing(serve: Serve, num_steps: int) -> None:
    """Over HTTP it is not known which comes first: one of them computes the prefix, and only one."""
    client = serve(step_tokens=150)
    prefix = client.text(2000)
    first = client.begin(prefix + client.text(70))
    client.wire.let_run(num_steps)
    second = client.begin(prefix + client.text(70))
    computed = sorted(talk.answer().recomputed for talk in (first, second))
    assert computed[0] <= 2070 - on_grid(2000)
    assert computed[1] == 2070


def test_a13_contexts_of_any_length(serve: Serve) -> None:
    with pytest.raises(ConfigError, match="at least 2") as refused:
        serve(max_model_len=1)
    assert refused.value.hint
    lengths = [2, 15, 16, 17, 50, 63, 64, 65, 100, 127, 128, 129, 150, 200, 257]
    for length in lengths[::4] if serve.small else lengths:
        client = serve(max_model_len=length, step_tokens=128)
        with pytest.raises(Refused, match=f"maximum context length is {length} tokens"):
            client.ask(client.text(length), 1)
        prompt = client.text(length - 1)
        client.ask(prompt, 1)
        assert client.ask(prompt, 1).resumed >= on_grid(length - 2)


def test_a14_a_conversation_that_is_still_generating(serve: Serve) -> None:
    client = serve()
    first = client.begin(client.text(300), serve.scaled(150, 400)).wait(100)
    second = client.ask(first.text[:390] + client.text(50))
    assert second.resumed >= on_grid(390)
    assert first.answer().resumed == 0
