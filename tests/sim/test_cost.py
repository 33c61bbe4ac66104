"""The time that prompts take: the model's constants, their fit to a bench's lines, and the queue."""

from __future__ import annotations

import json
import random
from dataclasses import astuple
from pathlib import Path

import numpy as np
import pytest

from milepost.errors import ConfigError
from milepost.sim.cost import DEFAULT, Cost, first_tokens


def bench_file(folder: Path, rates: dict[int, float], shape: str = "lfm2-350m") -> Path:
    """As `milepost bench SHAPE --json` writes it; `rates`: tokens a second by length."""
    rows = [(f"prefill {length}", rate, "tok/s") for length, rate in rates.items()]
    rows += [("decode, batch 1", 57.0, "tok/s"), ("16 x (512 + 64)", 69.0, "s")]
    path = folder / "bench.json"
    with path.open("a") as file:
        for name, value, unit in rows:
            row = {"shape": shape, "name": name, "value": value, "unit": unit, "spread": 0.02}
            file.write(json.dumps(row) + "\n")
    return path


def rates(cost: Cost, *lengths: int) -> dict[int, float]:
    return {length: 1000 * length / float(cost.prefill_ms(0, length)) for length in lengths}


def test_tokens_pairs_and_what_is_fixed() -> None:
    cost = Cost(100, 10, 1)
    assert cost.prefill_ms(0, 3) == 100 + 3 * 10 + (1 + 2 + 3)
    assert cost.prefill_ms(2, 4) == 100 + 2 * 10 + (3 + 4)
    assert cost.prefill_ms(4, 4) == 0
    assert cost.prefill_ms([0, 2, 4], 4).tolist() == [150, 127, 0]


def test_the_fit_finds_the_constants_again(tmp_path: Path) -> None:
    true = Cost(25, 1.5, 2e-4)
    found = Cost.from_bench(bench_file(tmp_path, rates(true, 512, 2048, 4096)))
    assert astuple(found)[:3] == pytest.approx(astuple(true)[:3])
    assert found.source == "milepost bench lfm2-350m"


def test_no_constant_is_negative(tmp_path: Path) -> None:
    """Long prompts that were read faster than short ones: as if attention gave time back."""
    found = Cost.from_bench(bench_file(tmp_path, {512: 600, 2048: 650, 4096: 700}))
    assert found.pair_ms == 0
    assert found.fixed_ms > 0
    assert found.token_ms == pytest.approx(1000 / 700, rel=0.05)


def test_one_length_gives_a_time_for_each_token(tmp_path: Path) -> None:
    assert astuple(Cost.from_bench(bench_file(tmp_path, {512: 500})))[:3] == pytest.approx((0, 2, 0))


def test_the_default_is_what_performance_md_says() -> None:
    assert rates(DEFAULT, 512, 2048, 4096) == pytest.approx({512: 349, 2048: 342, 4096: 334}, rel=0.002)


def test_a_file_of_several_shapes_needs_a_choice(tmp_path: Path) -> None:
    bench_file(tmp_path, {512: 500}, "a")
    path = bench_file(tmp_path, {512: 250}, "b")
    assert Cost.from_bench(path, "b").token_ms == pytest.approx(4)
    with pytest.raises(ConfigError, match="measurements of a, b"):
        Cost.from_bench(path)
    with pytest.raises(ConfigError, match="no prefill measurements of c"):
        Cost.from_bench(path, "c")


@pytest.mark.parametrize(
    "line",
    ["no JSON", "[1]", "{}", '{"shape": "a", "name": "prefill 512", "value": 0}', '{"name": "prefill 9"}', "[" * 9999],
)
def test_a_damaged_line_is_named(tmp_path: Path, line: str) -> None:
    path = bench_file(tmp_path, {512: 500})
    path.write_text(path.read_text() + "\n" + line + "\n")
    with pytest.raises(ConfigError, match=r"bench\.json, line 5 is no measurement"):
        Cost.from_bench(path)


@pytest.mark.parametrize("content", [None, b"", b"\xff\xfe"])
def test_a_file_without_measurements(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "bench.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        Cost.from_bench(path)
    assert "milepost bench" in caught.value.hint


def test_who_comes_while_the_server_is_busy_waits() -> None:
    """Prompts at 0, 1, 2 and 100 ms, of 10 ms each: done at 10, 20, 30 and 110."""
    found = first_tokens(np.array([0.0, 1.0, 2.0, 100.0]), np.full(4, 10.0))
    assert (found.mean, found.p25, found.p50, found.p75) == ((10 + 19 + 28 + 10) / 4, 10, 14.5, 21.25)
    assert found.busy == 40 / 110


def test_the_queue_is_that_of_a_loop() -> None:
    rng = random.Random(0)
    for _ in range(20):
        arrivals = np.array(sorted(rng.uniform(0, 500) for _ in range(30)))
        times = np.array([rng.choice((0.0, rng.uniform(0, 40))) for _ in arrivals])
        free, waits = 0.0, []
        for arrival, time in zip(arrivals.tolist(), times.tolist(), strict=True):
            free = max(free, arrival) + time
            waits.append(free - arrival)
        found = first_tokens(arrivals, times)
        assert found.mean == pytest.approx(np.mean(waits))
        assert (found.p50, found.p99) == pytest.approx(tuple(np.quantile(waits, (0.5, 0.99))))


def test_no_requests_and_no_time() -> None:
    assert astuple(first_tokens(np.array([]), np.array([]))) == (0, 0, 0, 0, 0, 0)
    assert first_tokens(np.array([5.0]), np.array([0.0])).busy == 0
