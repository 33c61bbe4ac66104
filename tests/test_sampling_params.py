"""Sampling parameters that cannot work are named, with what would."""

import math

import pytest

from milepost import SamplingParams
from milepost.errors import RequestError


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("temperature", value) for value in (-0.1, math.nan, math.inf, "1", True, None)),
        *(("top_p", value) for value in (0.0, 1.1, math.nan)),
        *(("min_p", value) for value in (-0.1, 1.1)),
        *(("presence_penalty", value) for value in (-2.1, 2.1)),
        ("frequency_penalty", 3),
        *(("repetition_penalty", value) for value in (0.0, -1.0)),
        *(("n", value) for value in (0, 10_000, 1.5, True, None)),
        *(("top_k", value) for value in (-2, 1.0, None)),
        *(("max_tokens", value) for value in (-1, 2.0)),
        *(("min_tokens", value) for value in (-1, 17)),
        *(("seed", value) for value in (2**64, -(2**63) - 1, 0.5)),
        *(("logprobs", value) for value in (-2, 0.5)),
        ("prompt_logprobs", -2),
        *(("skip_reading_prefix_cache", value) for value in (2, "yes")),
        *(("stop", value) for value in ("", ["a", ""], [1], ["x"] * 65, "x" * 5000)),
        *(("stop_token_ids", value) for value in ([-1], ["a"], [True], [1] * 1025)),
        *(("logit_bias", value) for value in ({-1: 0.0}, {1: 101.0}, {1: math.nan}, {"1": 1.0})),
    ],
)
def test_values_that_cannot_work_name_their_field(name: str, value: object) -> None:
    with pytest.raises(RequestError) as refused:
        SamplingParams(**{name: value})  # type: ignore[arg-type]
    assert (refused.value.param, refused.value.status) == (name, 400)
    assert name in refused.value.message or name == "stop"


def test_defaults_are_vllms() -> None:
    params = SamplingParams()
    assert (params.n, params.temperature, params.top_p, params.top_k, params.max_tokens) == (1, 1.0, 1.0, 0, 16)
    assert not params.greedy
    assert SamplingParams(temperature=0).greedy
    assert SamplingParams(stop="a").stops == ("a",)
    assert SamplingParams(stop=["a", "b"]).stops == ("a", "b")
    assert SamplingParams(prompt_logprobs=0).needs_every_row


def test_who_reads_the_prefix_cache() -> None:
    assert SamplingParams().reads_prefix_cache
    assert SamplingParams(skip_reading_prefix_cache=False).reads_prefix_cache
    assert not SamplingParams(skip_reading_prefix_cache=True).reads_prefix_cache
    assert not SamplingParams(prompt_logprobs=0).reads_prefix_cache
    assert not SamplingParams(prompt_logprobs=0, skip_reading_prefix_cache=False).reads_prefix_cache, "rows are needed"


def test_stop_strings_need_text() -> None:
    with pytest.raises(RequestError, match="need detokenize=True"):
        SamplingParams(stop="a", detokenize=False)
