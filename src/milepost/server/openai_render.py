"""POST /v1/chat/completions/render: what a chat becomes before the model reads it, in vLLM's shape and a bit more."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response

from milepost.sampling_params import SamplingParams
from milepost.server.errors import ApiResponse
from milepost.server.openai_chat import read_chat
from milepost.server.request_ids import id_of
from milepost.server.sampling import FIELDS
from milepost.server.state import server_state

router = APIRouter()

SAMPLING = (*FIELDS, "logit_bias", "logprobs", "prompt_logprobs")


@router.post("/v1/chat/completions/render")
async def render(request: Request) -> Response:
    """Checks all that /v1/chat/completions checks, and runs nothing."""
    state = server_state(request)
    read = await read_chat(request)
    body, prompt = read.body, read.prompt
    return ApiResponse(
        {
            "request_id": f"chatcmpl-{id_of(request)}",
            "model": state.served_name(body.model),
            "prompt": prompt.text,
            "token_ids": prompt.ids,
            "boundaries": prompt.places.boundaries,
            "breakpoints": prompt.places.breakpoints,
            "sampling_params": _told(read.params, state.engine.max_model_len - len(prompt.ids)),
            "stream": bool(body.stream),
            "priority": body.priority or 0,
            "cache_salt": body.cache_salt,
        }
    )


def _told(params: SamplingParams, room: int) -> dict[str, Any]:
    """With the `max_tokens` that there will be: the context has `room` for so many."""
    limit = room if params.max_tokens is None else min(params.max_tokens, room)
    return {name: getattr(params, name) for name in SAMPLING} | {"max_tokens": limit}
