"""llama.cpp's adaptor over HTTP, against a server that answers in the same form."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from bench.peers.child import Settings
from bench.peers.llama import SLOTS, Llama

SERVER = Path(__file__).with_name("fake_llama_server.py")


@pytest.fixture(params=[True, False], ids=["caching", "fresh"])
def llama(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Llama]:
    engine = Llama(Settings(tmp_path / "asked", 2, request.param, 100, {"server": str(SERVER)}))
    yield engine
    engine.server.kill()
    engine.server.wait()


def asked(tmp_path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (tmp_path / "asked").read_text().splitlines()]


def test_a_lone_prompt_and_a_lone_answer_are_timed_by_the_server(llama: Llama, tmp_path: Path) -> None:
    assert llama.about == {"version": "b1", "threads": 2}
    assert llama.prefill(tokens=30) == {"seconds": 0.5, "work": 30}
    assert llama.decode(batch=1, prompt=5, tokens=10) == {"seconds": 0.25, "work": 10}
    first, second = asked(tmp_path)
    assert len(first["prompt"]) == 30  # type: ignore[arg-type]
    assert first["n_predict"] == 1
    assert second["n_predict"] == 11
    assert first["cache_prompt"] is llama.prefix_caching
    assert first["ignore_eos"] is True


def test_what_runs_at_once_is_counted_to_the_last_token(llama: Llama) -> None:
    found = llama.decode(batch=3, prompt=5, tokens=10)
    assert found["seconds"] > 0
    assert 1 <= 33 - found["work"] <= 3 * 10  # the tokens that came before all had started
    assert llama.burst(requests=4, prompt=5, answer=6)["work"] == 24


def test_the_second_prompt_shares_and_is_timed_by_the_client(llama: Llama, tmp_path: Path) -> None:
    found = llama.reuse(tokens=20, shared=15)
    assert found["work"] == 1
    assert found["cached"] == 7
    assert found["seconds"] != 0.5
    first, second = (request["prompt"] for request in asked(tmp_path))
    assert first[:15] == second[:15]  # type: ignore[index]
    assert first != second


def test_it_keeps_copies_of_prompts_only_where_they_are_reused(llama: Llama, tmp_path: Path) -> None:
    line = json.loads((tmp_path / "asked.argv").read_text())
    assert ("--cache-ram" in line) is not llama.prefix_caching
    assert line[line.index("-c") + 1] == str(SLOTS * 100)


def test_a_server_that_ends_is_told(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="ended with"):
        Llama(Settings(tmp_path / "asked", 2, True, 100, {"server": "/bin/false"}))
