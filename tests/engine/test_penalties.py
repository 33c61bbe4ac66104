"""Penalties against their definitions, and the counts that follow a growing sequence."""

import collections
import random
from typing import Any

import numpy as np
import pytest

from milepost.engine.penalties import TokenCounts, wanted
from milepost.sampling_params import SamplingParams


def penalised(scores: list[float], prompt: list[int], output: list[int], params: SamplingParams) -> list[float]:
    """The definitions, token by token."""
    counts = collections.Counter(output)
    result = []
    for token, score in enumerate(scores):
        if token in prompt or token in counts:
            score = score / params.repetition_penalty if score > 0 else score * params.repetition_penalty
        score -= params.frequency_penalty * counts[token]
        score -= params.presence_penalty * (counts[token] > 0)
        result.append(score)
    return result


CASES: list[dict[str, Any]] = [
    {"repetition_penalty": 1.5},
    {"repetition_penalty": 0.5},
    {"presence_penalty": 1.25},
    {"presence_penalty": -2.0},
    {"frequency_penalty": 0.25},
    {"frequency_penalty": -0.5},
    {"repetition_penalty": 1.25, "presence_penalty": 0.5, "frequency_penalty": 1.0},
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_against_the_definitions(case: dict[str, Any]) -> None:
    rng = random.Random(0)
    params = SamplingParams(**case)
    assert wanted(params)
    prompt = [rng.randrange(200) for _ in range(100)]
    output: list[int] = []
    counts = TokenCounts(len(prompt))
    for _ in range(60):
        scores = [rng.gauss(0, 3) for _ in range(200)]
        array = np.array(scores, dtype=np.float32)
        counts.update([*prompt, *output])
        counts.penalise(array, params)
        assert array.tolist() == pytest.approx(penalised(scores, prompt, output, params), rel=1e-5, abs=1e-5)
        output += [rng.randrange(200) for _ in range(rng.randrange(3))]


def test_a_sequence_that_gets_shorter_is_read_anew() -> None:
    counts, fresh = TokenCounts(2), TokenCounts(2)
    counts.update([1, 2, 3, 3, 4])
    counts.update([1, 2, 5])
    fresh.update([1, 2, 5])
    params = SamplingParams(frequency_penalty=1.0, presence_penalty=0.5)
    ours, expected = np.zeros(8, dtype=np.float32), np.zeros(8, dtype=np.float32)
    counts.penalise(ours, params)
    fresh.penalise(expected, params)
    assert ours.tolist() == expected.tolist() == [0, 0, 0, 0, 0, -1.5, 0, 0]


def test_masked_scores_stay_masked() -> None:
    counts = TokenCounts(1)
    counts.update([0, 0, 1])
    scores = np.array([-np.inf, -np.inf, 1.0], dtype=np.float32)
    counts.penalise(scores, SamplingParams(repetition_penalty=1.1, presence_penalty=-2.0))
    assert scores.tolist() == [-np.inf, -np.inf, 1.0]


def test_default_parameters_want_no_penalty() -> None:
    assert not wanted(SamplingParams())


def test_extreme_penalties_give_infinity_and_no_nan() -> None:
    counts = TokenCounts(1)
    counts.update([0, 1, 2])
    scores = np.array([-np.inf, 1.0, -1.0], dtype=np.float32)
    counts.penalise(scores, SamplingParams(repetition_penalty=1e-300))
    assert scores.tolist() == [-np.inf, np.inf, -0.0]
