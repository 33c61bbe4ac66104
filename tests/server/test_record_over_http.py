"""`--record` behind a server: what clients were told of the cache is what the recording says, and no more."""

import json
from pathlib import Path

import httpx
from fake_engine import serving, state_of
from real_engine import running_engine

from milepost.engine.record_file import RecordFile

PREFIX = [token % 97 for token in range(1000, 1200)]
PROMPTS = [PREFIX, [*PREFIX, 7, 7, 7], [*PREFIX[:128], *range(60)], [9] * 70, [9] * 70]
SALTS = [None, None, None, None, "the salt"]


def test_what_clients_were_told_is_recorded(tmp_path: Path):
    told = []
    with running_engine() as engine:
        engine.record(RecordFile(str(tmp_path / "trace")))
        with serving(state_of(engine)) as url, httpx.Client(base_url=url, timeout=60) as http:
            for prompt, salt in zip(PROMPTS, SALTS, strict=True):
                body = {"model": "", "prompt": prompt, "max_tokens": 5, "ignore_eos": True} | (
                    {"cache_salt": salt} if salt else {}
                )
                usage = http.post("/v1/completions", json=body).raise_for_status().json()["usage"]
                cached = usage["prompt_tokens_details"]["cached_tokens"]
                told.append((usage["prompt_tokens"], usage["completion_tokens"], cached))
    text = (tmp_path / "trace").read_text()
    header, *requests = map(json.loads, text.splitlines())
    assert [(line["in"], line["out"], line["hit"]) for line in requests] == told
    assert told[1][2] == 200
    assert [line["scope"] for line in requests] == [0, 0, 0, 0, 1]
    assert header["checkpoint_bytes"] > 0
    assert "the salt" not in text
    assert str(PREFIX[:3])[1:-1].replace(" ", "") not in text
