"""What a recording says of the requests that an engine has served."""

import errno
import json
import os
from pathlib import Path

import pytest
from tiny_engine import MakeEngine, add, drain

from milepost.engine import record
from milepost.engine.engine import Engine
from milepost.engine.record_file import RecordFile
from milepost.errors import ConfigError
from milepost.sampling_params import SamplingParams

PROMPT = list(range(150))
FEW = SamplingParams(max_tokens=3, temperature=0, ignore_eos=True)


def served(engine: Engine, path: Path, *prompts: list[int], params: SamplingParams = FEW, salt: str = "") -> None:
    """One after another."""
    engine.record(RecordFile(str(path)))
    for i, prompt in enumerate(prompts):
        add(engine, f"r{i}", prompt, params, cache_salt=salt)
        drain(engine)
    close(engine)


def close(engine: Engine) -> None:
    assert engine.recorder is not None
    engine.recorder.close()


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def by_length(path: Path) -> dict[int, dict]:
    return {line["in"]: line for line in lines(path)[1:]}


def test_a_request_is_lengths_times_and_hashes(make_engine: MakeEngine, tmp_path: Path):
    engine = make_engine()
    served(engine, tmp_path / "trace", PROMPT, PROMPT)
    header, first, second = lines(tmp_path / "trace")
    told = {name: header[name] for name in ("format", "version", "block_size", "retention_interval")}
    assert told == {"format": "milepost-trace", "version": 1, "block_size": 64, "retention_interval": None}
    memory = engine.scheduler.cache.memory
    assert (header["cache_bytes"], header["checkpoint_bytes"]) == (memory.limit_bytes, 0)
    assert header["kv_bytes_per_token"] == memory.block_bytes // 16
    assert {name: first[name] for name in ("scope", "in", "out", "hit", "end", "miss", "boundaries")} == {
        "scope": 0,
        "in": 150,
        "out": 3,
        "hit": 0,
        "end": "length",
        "miss": "no prefix",
        "boundaries": [],
    }
    assert (second["hit"], second["miss"]) == (144, None)
    assert len(first["blocks"]) == 2
    assert first["blocks"] == second["blocks"]
    assert first["queued_ms"] > 0
    assert second["t_ms"] > first["t_ms"] > 0


def test_ids_are_chained_and_the_answer_goes_on_from_the_prompt(make_engine: MakeEngine, tmp_path: Path):
    engine = make_engine()
    engine.record(RecordFile(str(tmp_path / "trace")))
    add(engine, "first", PROMPT[:100], SamplingParams(max_tokens=40, temperature=0, ignore_eos=True))
    answer = list(drain(engine)["first"].outputs[0].token_ids)
    add(engine, "second", [*PROMPT[:100], *answer, 7], FEW)
    add(engine, "other", [PROMPT[0] + 1, *PROMPT[1:128]], FEW)
    drain(engine)
    close(engine)
    first, second, other = (by_length(tmp_path / "trace")[length] for length in (100, 141, 128))
    assert second["blocks"] == first["blocks"] + first["answer"]
    assert len(first["answer"]) == 1
    assert not set(other["blocks"]) & set(second["blocks"]), "one other token at the start changes all"


def test_scopes_are_numbers_and_share_no_ids(make_engine: MakeEngine, tmp_path: Path):
    engine = make_engine()
    engine.record(RecordFile(str(tmp_path / "trace")))
    for salt in ("the key of anna", "bert", "the key of anna"):
        add(engine, salt, PROMPT, FEW, cache_salt=salt)
        drain(engine)
    close(engine)
    _, *requests = lines(tmp_path / "trace")
    assert [line["scope"] for line in requests] == [0, 1, 0]
    assert requests[0]["blocks"] == requests[2]["blocks"]
    assert not set(requests[0]["blocks"]) & set(requests[1]["blocks"])
    assert "anna" not in (tmp_path / "trace").read_text()


def test_later_scopes_share_a_number(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(record, "MAX_SCOPES", 3)
    keys = record.BlockHashes(b"key")
    assert [keys.scope(name) for name in "abcdba"] == [0, 1, 2, 2, 1, 0]


def test_another_file_has_other_ids(make_engine: MakeEngine, tmp_path: Path):
    for name in ("a", "b"):
        served(make_engine(), tmp_path / name, PROMPT)
    one, other = (lines(tmp_path / name)[1] for name in ("a", "b"))
    assert not set(one["blocks"]) & set(other["blocks"])


def test_places_where_prompts_part_are_told_in_blocks(make_engine: MakeEngine, tmp_path: Path):
    engine = make_engine()
    engine.record(RecordFile(str(tmp_path / "trace")))
    add(engine, "a", {"prompt_token_ids": PROMPT, "cache_breakpoints": [10, 70, 100, 140]}, FEW)  # type: ignore[arg-type]
    drain(engine)
    close(engine)
    assert lines(tmp_path / "trace")[1]["boundaries"] == [1, 2]


def test_aborted_requests_are_there_if_they_had_begun(make_engine: MakeEngine, tmp_path: Path):
    engine = make_engine()
    engine.record(RecordFile(str(tmp_path / "trace")))
    add(engine, "runs", PROMPT, FEW)
    engine.step()
    add(engine, "waits", PROMPT, FEW)
    for name in ("runs", "waits"):
        engine.abort(name)
    close(engine)
    assert [(line["end"], line["in"]) for line in lines(tmp_path / "trace")[1:]] == [("abort", 150)]


def test_samples_of_a_request_are_one_line(make_engine: MakeEngine, tmp_path: Path):
    params = SamplingParams(n=2, max_tokens=3, seed=1, ignore_eos=True)
    served(make_engine(), tmp_path / "trace", PROMPT, params=params)
    (line,) = lines(tmp_path / "trace")[1:]
    assert line["out"] == 6


def test_a_full_disk_is_told_at_the_start(make_engine: MakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "pwrite", no_space)
    with pytest.raises(ConfigError, match="No space left"):
        make_engine().record(RecordFile(str(tmp_path / "trace")))


def test_serving_goes_on_when_the_disk_is_full_later(
    make_engine: MakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    engine = make_engine()
    caplog.clear()
    engine.record(RecordFile(str(tmp_path / "trace")))
    monkeypatch.setattr(os, "pwrite", no_space)
    for name in ("a", "b"):
        add(engine, name, PROMPT, FEW)
        assert drain(engine)[name].outputs[0].finish_reason == "length"
    close(engine)
    assert len(lines(tmp_path / "trace")) == 1
    assert [entry.getMessage().partition(" (")[0] for entry in caplog.records] == [
        "requests are not recorded: No space left on device"
    ]
    counted = engine.metrics.text().decode()
    assert 'milepost:unrecorded_requests_total{model_name="random"} 2.0' in counted
    assert 'milepost:recorded_requests_total{model_name="random"} 0.0' in counted


def no_space(*_: object) -> int:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_disk_that_hangs_does_not_fill_the_memory(
    make_engine: MakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(record, "MAX_WAITING_TOKENS", 400)
    engine = make_engine()
    monkeypatch.setattr(record.Recorder, "_run", lambda self: None)
    engine.record(RecordFile(str(tmp_path / "trace")))
    for i in range(4):
        add(engine, str(i), PROMPT, FEW)
        drain(engine)
    assert 'unrecorded_requests_total{model_name="random"} 2.0' in engine.metrics.text().decode()
