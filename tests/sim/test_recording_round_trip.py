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
