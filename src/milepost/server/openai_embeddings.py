"""POST /v1/embeddings: texts or token ids in, a vector for each out."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
from fastapi import APIRouter, Request, Response

from milepost.errors import RequestError
from milepost.outputs import RequestOutput
from milepost.sampling_params import POOLINGS, RequestOutputKind, SamplingParams
from milepost.server.body import read_json
from milepost.server.errors import ApiResponse
from milepost.server.explaining import Explained
from milepost.server.generation import Usage, finals, new_job
from milepost.server.prompts import num_prompts, read_prompts
from milepost.server.queue_limit import admit
from milepost.server.sampling import check_fits
from milepost.server.schemas import EmbeddingRequest
from milepost.server.state import server_state
from milepost.server.stream import until_hangup

router = APIRouter()

FORMATS = ("float", "base64")


@router.post("/v1/embeddings")
async def embeddings(request: Request) -> Response:
    state = server_state(request)
    engine, body = state.engine, await read_json(request, EmbeddingRequest)
    state.served_name(body.model)
    _check(body, engine.hidden_size)
    params = SamplingParams(
        max_tokens=0,
        seed=0,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
        skip_reading_prefix_cache=body.skip_reading_prefix_cache,
        pooling=_pooling(body.pooling_type, state.settings.pooling),
    )
    admit(request, num_prompts(body.input))
    special = body.add_special_tokens is not False
    prompts = await until_hangup(request, read_prompts(engine, body.input, add_special_tokens=special, param="input"))
    for prompt in prompts:
        check_fits(engine, len(prompt.ids), None, "input")
    job = new_job("embd", request, body, prompts, params)
    outputs = await until_hangup(request, finals(engine, job))
    usage, explained = Usage(), Explained(engine.tokenizer)
    for number, output in enumerate(outputs):
        usage.add(number, output)
        explained.add(number, output)
    data = [
        {"object": "embedding", "index": i, "embedding": _told(_vector(output, body), body.encoding_format)}
        for i, output in enumerate(outputs)
    ]
    answer = {**job.head("list"), "data": data, "usage": usage.as_dict()}
    return ApiResponse({**answer, "cache": explained.as_json()} if job.explains else answer)


def _check(body: EmbeddingRequest, size: int) -> None:
    if body.encoding_format not in (None, *FORMATS):
        raise RequestError(f"encoding_format must be one of {', '.join(FORMATS)}", "change it", param="encoding_format")
    if body.dimensions is not None and not 1 <= body.dimensions <= size:
        problem = f"dimensions must be 1 to {size}, as many as this model has, got {body.dimensions}"
        raise RequestError(problem, "change it", param="dimensions")


def _pooling(asked: str | None, default: str) -> str:
    """vLLM writes LAST and MEAN, llama.cpp last and mean."""
    pooling = (asked or default).lower()
    if pooling not in POOLINGS:
        raise RequestError(f"pooling_type must be one of {', '.join(POOLINGS)}", "change it", param="pooling_type")
    return pooling


def _vector(output: RequestOutput, body: EmbeddingRequest) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Cut to the first `dimensions`, then of length 1 unless `normalize` is false."""
    vector = np.asarray(output.embedding, dtype=np.float32)
    if body.dimensions is not None:
        vector = vector[: body.dimensions]
    length = float(np.linalg.norm(vector.astype(np.float64)))
    return vector if body.normalize is False or length == 0 else (vector / length).astype(np.float32)


def _told(vector: np.ndarray[Any, np.dtype[np.float32]], format: str | None) -> list[float] | str:
    """base64 is of little-endian fp32, as in OpenAI's API."""
    if format == "base64":
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()
    told: list[float] = vector.tolist()
    return told
