"""/v1/models: what this server answers under, and how long its context is."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response

from milepost.server.errors import ApiResponse
from milepost.server.state import ServerState, server_state

router = APIRouter()


@router.get("/v1/models")
@router.get("/v1/models/")
async def list_models(request: Request) -> Response:
    state = server_state(request)
    return ApiResponse({"object": "list", "data": [_card(state, name) for name in state.model_names]})


@router.get("/v1/models/{name:path}")
async def get_model(request: Request, name: str) -> Response:
    state = server_state(request)
    return ApiResponse(_card(state, state.served_name(name)))


def _card(state: ServerState, name: str) -> dict[str, Any]:
    """As vLLM gives it, with `max_model_len`: prompt and answer together, in tokens."""
    return {
        "id": name,
        "object": "model",
        "created": state.created,
        "owned_by": "milepost",
        "root": state.engine.model_name,
        "parent": None,
        "max_model_len": state.engine.max_model_len,
    }
