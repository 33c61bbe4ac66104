"""What a server recorded, replayed: each request resumes what it resumed there, to the last grid point.

A recording has blocks of 64 tokens, so what ends of texts add behind the grid is not in it.
"""

import random
from pathlib import Path

import httpx
import pytest
from fake_engine import serving, state_of
from real_engine import running_engine

from milepost.engine.record_file import RecordFile
from milepost.sim.formats.registry import open_trace
from milepost.sim.replay import Setting, replay
from milepost.specs import CHUNK

VOCABULARY = 97
ENDLESS = 10**12


def requests(rng: random.Random) -> list[tuple[list[int], str]]:
    """Prompts that share beginnings of all lengths, within two scopes."""

    def words(count: int) -> list[int]:
        return [rng.randrange(VOCABULARY) for _ in range(count)]

    made = [(words(300), ""), (words(200), "another")]
    while len(made) < 24:
        earlier, scope = rng.choice(made)
        prompt = [*earlier[: rng.randint(len(earlier) // 3, len(earlier))], *words(rng.randint(1, 120))]
        made.append((prompt[:400], rng.choice((scope, scope, scope, "another"))))
    return made


@pytest.mark.parametrize("interval", [None, 0, 128])
def test_a_replay_resumes_what_the_server_did(tmp_path: Path, interval: int | None):
    told = []
    with running_engine(prefix_cache_retention_interval=interval) as engine:
        engine.record(RecordFile(str(tmp_path / "trace")))
        with serving(state_of(engine)) as url, httpx.Client(base_url=url, timeout=60) as http:
            for prompt, salt in requests(random.Random(1)):
                body = {"model": "", "prompt": prompt, "max_tokens": 2, "ignore_eos": True, "cache_salt": salt or None}
                usage = http.post("/v1/completions", json=body).raise_for_status().json()["usage"]
                told.append(usage["prompt_tokens_details"]["cached_tokens"])
    trace = open_trace(tmp_path / "trace")
    assert trace.sizes is not None
    assert trace.sizes.checkpoint_bytes > 0
    found = replay(trace, Setting(interval=interval), trace.sizes, ENDLESS)
    assert sum(told) > 1000
    assert found.hits.tolist() == [resumed // CHUNK * CHUNK for resumed in told]


@pytest.mark.parametrize("interval", [None, 0])
def test_turns_resume_the_answers_before_them(tmp_path: Path, interval: int | None):
    rng, told = random.Random(2), []
    with running_engine(prefix_cache_retention_interval=interval) as engine:
        engine.record(RecordFile(str(tmp_path / "trace")))
        with serving(state_of(engine)) as url, httpx.Client(base_url=url, timeout=60) as http:
            chats: list[list[int]] = [[], []]
            for turn in range(6):
                chat = chats[turn % 2]
                chat += [rng.randrange(VOCABULARY) for _ in range(rng.randint(40, 110))]
                body = {"model": "", "prompt": chat, "max_tokens": 70, "ignore_eos": True, "return_token_ids": True}
                answer = http.post("/v1/completions", json=body).raise_for_status().json()
                told.append(answer["usage"]["prompt_tokens_details"]["cached_tokens"])
                chat += answer["choices"][0]["token_ids"]
    trace = open_trace(tmp_path / "trace")
    assert trace.sizes is not None
    found = replay(trace, Setting(interval=interval), trace.sizes, ENDLESS)
    assert told[4] > told[2] > 100
    assert found.hits.tolist() == [resumed // CHUNK * CHUNK for resumed in told]
