import pytest

from milepost.cache.retention import Kind, Retention, stronger
from milepost.errors import ConfigError
from milepost.request import Sequence
from milepost.sampling_params import SamplingParams


def sequence(num_tokens: int, breakpoints: tuple[int, ...] = (), boundaries: tuple[int, ...] = ()) -> Sequence:
    tokens, params = [0] * num_tokens, SamplingParams()
    return Sequence("a", tokens, num_tokens, params, breakpoints=breakpoints, boundaries=boundaries)


def kept(interval: int | None, seq: Sequence, junction: int = 0) -> dict[int, Kind]:
    kinds = {point: Retention(interval).kind(seq, junction, point) for point in range(64, 641, 64)}
    return {point: kind for point, kind in kinds.items() if kind is not None}


def test_dense_keeps_every_grid_point() -> None:
    assert list(kept(None, sequence(600))) == list(range(64, 641, 64))


def test_an_interval_keeps_its_multiples_and_the_ends() -> None:
    assert kept(256, sequence(600)) == {256: "grid", 512: "grid", 576: "end"}


def test_no_interval_keeps_special_points_alone() -> None:
    assert kept(0, sequence(600, (100, 320, 9999)), junction=192) == {
        64: "breakpoint",
        192: "junction",
        320: "breakpoint",
        576: "end",
    }


def test_a_prompt_that_ends_on_the_grid_keeps_the_point_before_too() -> None:
    assert kept(0, sequence(384)) == {320: "end", 384: "end"}
    assert kept(0, sequence(385)) == {384: "end"}


def test_of_two_reasons_the_stronger_counts() -> None:
    assert kept(0, sequence(600, (600,)), junction=320) == {320: "junction", 576: "breakpoint"}
    assert kept(0, sequence(600), junction=576) == {576: "junction"}
    assert kept(0, sequence(600, (70,), (75, 130, 330, 600)), junction=320) == {
        64: "breakpoint",
        128: "boundary",
        320: "junction",
        576: "boundary",
    }
    assert [stronger("grid", "end"), stronger("junction", "end"), stronger("end", "end")] == ["end", "junction", "end"]


@pytest.mark.parametrize("interval", [None, 0, 128, 256])
def test_the_deepest_point_is_the_last_that_is_kept(interval: int | None) -> None:
    seq, retention = sequence(600, (330,), (70, 400)), Retention(interval)
    for limit in range(641):
        points = [point for point in kept(interval, seq, junction=192) if point <= limit]
        assert retention.deepest(seq, 192, limit) == max(points, default=0)


@pytest.mark.parametrize(("interval", "nearest"), [(1, 64), (100, 128), (65, 64), (-64, 64), (1000, 1024)])
def test_an_interval_off_the_grid_is_refused_and_the_nearest_named(interval: int, nearest: int) -> None:
    with pytest.raises(ConfigError) as caught:
        Retention(interval)
    assert caught.value.hint == f"use {nearest}"
