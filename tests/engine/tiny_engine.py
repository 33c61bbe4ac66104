"""What tests of the engine do with one: a tiny config, random prompts, requests in and answers out."""

from __future__ import annotations

import random
from collections.abc import Callable

from milepost.engine.engine import Engine
from milepost.engine.inputs import read_prompt
from milepost.outputs import RequestOutput
from milepost.sampling_params import SamplingParams

TINY = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 199,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
}

MakeEngine = Callable[..., Engine]


def random_prompts(num: int, longest: int, seed: int = 0) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(TINY["vocab_size"]) for _ in range(rng.randint(1, longest))] for _ in range(num)]


def add(engine: Engine, request_id: str, prompt: list[int], params: SamplingParams, **options: object) -> None:
    engine.add(request_id, read_prompt(prompt, engine.model), params, **options)  # type: ignore[arg-type]


def drain(engine: Engine) -> dict[str, RequestOutput]:
    """Steps until all is done; the last output of each request."""
    last: dict[str, RequestOutput] = {}
    while engine.has_work:
        last.update((output.request_id, output) for output in engine.step())
    return last


def tokens(output: RequestOutput, index: int = 0) -> list[int]:
    return list(output.outputs[index].token_ids)
