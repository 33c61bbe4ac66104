"""Whole answers: tokens drawn and log probabilities, to the bit, of requests served alone and of requests served among
others, cut by any budget, preempted, resumed from the cache, on any number of threads."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from exact_models import exact_model
from families import FAMILIES
from streams import threads

from milepost.config import EngineConfig
from milepost.engine.build import assemble
from milepost.engine.engine import Engine
from milepost.engine.inputs import read_prompt
from milepost.models.loader.load import LoadedModel
from milepost.models.loader.random_weights import random_source
from milepost.ops.cpu import library
from milepost.outputs import RequestOutput
from milepost.sampling_params import SamplingParams
from milepost.specs import checkpoint_bytes, kv_block_bytes, window_bytes

NUM_SEQS = 6
PARAMS: tuple[dict[str, Any], ...] = (
    {"logprobs": 3, "seed": 1},
    {"temperature": 0.0, "logprobs": 0, "prompt_logprobs": 2},
    {"top_p": 0.9, "top_k": 50, "logprobs": 1, "n": 2, "seed": 2},
    {"temperature": 1.4, "min_p": 0.01, "repetition_penalty": 1.2, "frequency_penalty": 0.3, "logprobs": 2, "seed": 3},
    {"temperature": 0.0},
)

pytestmark = pytest.mark.skipif(
    not library.available(), reason="without kernels the ops run in torch, whose rows are not exact"
)


def engine_of(family: str, dtype: torch.dtype, num_blocks: int, budget: int) -> Engine:
    model = exact_model(family, dtype, library.available()[0])
    specs, size = model.layer_specs(), dtype.itemsize
    states = (2 * NUM_SEQS + 1) * checkpoint_bytes(specs, size) + NUM_SEQS * window_bytes(specs, size)
    memory = max(num_blocks * kv_block_bytes(specs, size), states) + states
    loaded = LoadedModel(model, random_source(FAMILIES[family].to_dict(), "tiny"), [], dtype, 0)
    config = EngineConfig(
        kv_cache_memory_bytes=memory, max_num_seqs=NUM_SEQS, max_model_len=256, max_num_batched_tokens=budget
    )
    return assemble(loaded, config)


def answers(engine: Engine, prompts: dict[str, list[int]]) -> dict[str, RequestOutput]:
    for name, prompt in prompts.items():
        params = SamplingParams(max_tokens=20, ignore_eos=True, **PARAMS[int(name) % len(PARAMS)])
        engine.add(name, read_prompt(prompt, engine.model), params)
    last: dict[str, RequestOutput] = {}
    while engine.has_work:
        last.update((output.request_id, output) for output in engine.step())
    assert all(output.error is None for output in last.values())
    return last


@pytest.mark.parametrize("dtype", [pytest.param(torch.float32, id="fp32"), pytest.param(torch.bfloat16, id="bf16")])
@pytest.mark.parametrize("family", ["falcon_h1", "gemma3_text", "lfm2", "llama", "mamba", "qwen3_next"])
def test_alone_and_among_others(family: str, dtype: torch.dtype) -> None:
    rng = random.Random(7)
    start = rng.choices(range(199), k=150)
    prompts = {str(i): start[: rng.randint(0, 150)] + rng.choices(range(199), k=rng.randint(1, 60)) for i in range(10)}
    with threads(1):
        alone = {name: answers(engine_of(family, dtype, 200, 400), {name: prompts[name]})[name] for name in prompts}
    for budget, num_blocks, num_threads in ((400, 200, 1), (64, 34, 2), (17, 200, 3)):
        with threads(num_threads):
            together = answers(engine_of(family, dtype, num_blocks, budget), prompts)
        for name, output in together.items():
            assert output.outputs == alone[name].outputs, (name, budget)
            assert output.prompt_logprobs == alone[name].prompt_logprobs, (name, budget)
