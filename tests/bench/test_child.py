"""The loop that is the same for all engines that are stepped: what it sends, what it counts, what it times."""

import ast
from pathlib import Path

import pytest
from bench.engines import ENGINES, OURS, command, environment
from bench.peers.child import Prompts, Runs

from bench import peers

VOCABULARY = 1000


class Stepped:
    """Draws a token for each request in every step, which takes a second; request 2 is late by a step."""

    def __init__(self) -> None:
        self.about = {"version": "1"}
        self.cached: int | None = 7
        self.now = 0.0
        self.left: dict[int, int] = {}
        self.prompts: list[list[int]] = []
        self.late = {2: 1}

    def add(self, number: int, ids: list[int], max_tokens: int) -> None:
        self.prompts.append(ids)
        self.left[number] = max_tokens

    def step(self) -> list[int]:
        self.now += 1
        drawn = []
        for number in list(self.left):
            if self.late.get(number, 0):
                self.late[number] -= 1
                continue
            drawn.append(number)
            self.left[number] -= 1
            if not self.left[number]:
                del self.left[number]
        return drawn

    def busy(self) -> bool:
        return bool(self.left)


@pytest.fixture
def engine() -> Stepped:
    return Stepped()


@pytest.fixture
def runs(engine: Stepped) -> Runs:
    return Runs(engine, Prompts(VOCABULARY, seed=1), lambda: engine.now)


def test_prefill_is_a_fresh_prompt_to_its_first_token(engine: Stepped, runs: Runs) -> None:
    assert runs.prefill(tokens=30) == {"seconds": 1, "work": 30}
    runs.prefill(tokens=30)
    first, second = engine.prompts[0], engine.prompts[1]
    assert len(first) == len(second) == 30
    assert first != second


def test_decode_counts_what_is_drawn_after_all_have_started(engine: Stepped, runs: Runs) -> None:
    found = runs.decode(batch=2, prompt=5, tokens=10)
    assert found == {"seconds": 10, "work": 19}  # the other had one token more by then
    assert not engine.left


def test_a_burst_is_all_requests_to_the_last_ones_end(runs: Runs) -> None:
    assert runs.burst(requests=3, prompt=5, answer=4) == {"seconds": 5, "work": 12}


def test_reuse_times_the_second_prompt_alone(engine: Stepped, runs: Runs) -> None:
    engine.late = {1: 5}
    assert runs.reuse(tokens=20, shared=15) == {"seconds": 1, "work": 1, "cached": 7}
    first, second = engine.prompts
    assert first[:15] == second[:15]
    assert first[15:] != second[15:]
    assert len(first) == len(second) == 20


def test_prompts_leave_special_tokens_out() -> None:
    ids = Prompts(VOCABULARY).fresh(5000)
    assert 100 <= min(ids) < 120
    assert 880 < max(ids) < 900


def test_adaptors_know_nothing_of_milepost() -> None:
    folder = Path(peers.__file__).parent
    for path in folder.glob("*.py"):
        tree = ast.parse(path.read_text())
        names = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
        names += [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
        assert path.name == "milepost.py" or not [n for n in names if n.split(".")[0] == "milepost"], path
        allowed = {"bench.peers.child"} | ({"bench.kernel_times"} if path.stem == "milepost" else set())
        assert all(not n.startswith("bench.") or n in allowed for n in names), path


@pytest.mark.parametrize("name", ENGINES)
def test_every_engine_has_an_adaptor_and_a_command_line(name: str, tmp_path: Path) -> None:
    line = command(name, tmp_path, "lfm2-350m", threads=3, prefix_caching=True)
    assert (Path(peers.__file__).parent / f"{ENGINES[name].adaptor}.py").exists()
    assert line[1:3] == ["-m", f"bench.peers.{ENGINES[name].adaptor}"]
    assert line[line.index("--threads") + 1] == "3"
    assert line[line.index("--model") + 1].startswith(str(tmp_path / "models" / "lfm2-350m"))
    assert "--prefix-caching" in line
    assert "--prefix-caching" not in command(name, tmp_path, "lfm2-350m", threads=3, prefix_caching=False)
    told = [*line, *environment(name, tmp_path, 3).values()]
    assert not [word for word in told if "{" in word]
    assert environment(OURS, tmp_path, 3)["OMP_NUM_THREADS"] == "3"
