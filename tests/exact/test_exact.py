"""Whole models: the logits of a row have the same bits however its prompt is cut, packed, delayed and resumed, on any
number of threads, whatever its memory held before."""

import pytest
import torch
from exact_models import WIDER, exact_model
from families import FAMILIES
from streams import Stream, read_stream

from milepost.ops.cpu import library

DTYPES = [pytest.param(torch.float32, id="fp32"), pytest.param(torch.bfloat16, id="bf16")]
SETS = library.available()
BEST, OTHERS = SETS[:1], SETS[1:]
NUM_CASES, CASES_OF_A_STREAM = 2_000, 25

pytestmark = pytest.mark.skipif(not SETS, reason="without kernels the ops run in torch, whose rows are not exact")


def seed_of(family: str) -> int:
    return list(FAMILIES).index(family)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("instruction_set", BEST)
def test_a_stream_of_every_family(family: str, dtype: torch.dtype, instruction_set: str) -> None:
    done = read_stream(exact_model(family, dtype, instruction_set), Stream(seed_of(family)))
    assert done.num_resumed > 2


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", ["gemma3_text", "granitemoehybrid", "mamba", "qwen3_next"])
@pytest.mark.parametrize("instruction_set", OTHERS)
def test_other_instruction_sets(family: str, dtype: torch.dtype, instruction_set: str) -> None:
    read_stream(exact_model(family, dtype, instruction_set), Stream(seed_of(family), num_cases=8))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", WIDER)
@pytest.mark.parametrize("instruction_set", BEST)
def test_wider_models_and_longer_prompts(family: str, dtype: torch.dtype, instruction_set: str) -> None:
    model = exact_model(family, dtype, instruction_set, wider=True)
    read_stream(model, Stream(seed_of(family), num_cases=6, max_tokens=1300, vocab_size=1000))


@pytest.mark.full
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("instruction_set", SETS)
def test_thousands_of_cases(family: str, dtype: torch.dtype, instruction_set: str) -> None:
    """2,000 of each family in each dtype with the best instruction set, 250 with each of the others."""
    model, num_done = exact_model(family, dtype, instruction_set), 0
    wanted = NUM_CASES if instruction_set in BEST else NUM_CASES // 8
    seed = 1000
    while num_done < wanted:
        num_done += read_stream(model, Stream(seed, CASES_OF_A_STREAM)).num_cases
        seed += 1


@pytest.mark.full
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", WIDER)
@pytest.mark.parametrize("instruction_set", SETS)
def test_many_cases_of_wider_models(family: str, dtype: torch.dtype, instruction_set: str) -> None:
    model = exact_model(family, dtype, instruction_set, wider=True)
    for seed in range(5000, 5010 if instruction_set in BEST else 5002):
        read_stream(model, Stream(seed, num_cases=10, max_tokens=1300, vocab_size=1000))
