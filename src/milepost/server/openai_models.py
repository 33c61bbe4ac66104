"""/v1/models: what this server answers under, and how long its context is. Clients of both APIs read it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from fastapi import APIRouter, Request, Response

from milepost.server.errors import ApiResponse
from milepost.server.state import ServerState, server_state

router = APIRouter()


@router.get("/v1/models")
@router.get("/v1/models/")
async def list_models(request: Request) -> Response:
    state = server_state(request)
    names = state.model_names
    cards = [_card(state, name) for name in names]
    page = {"has_more": False, "first_id": names[0], "last_id": names[-1]}
    return ApiResponse({"object": "list", "data": cards, **page})


@router.get("/v1/models/{name:path}")
async def get_model(request: Request, name: str) -> Response:
    state = server_state(request)
    return ApiResponse(_card(state, state.served_name(name)))


def _card(state: ServerState, name: str) -> dict[str, Any]:
    """As vLLM gives it, with `max_model_len`: prompt and answer together, in tokens; then Anthropic's fields."""
    return {
        "id": name,
        "object": "model",
        "created": state.created,
        "owned_by": "milepost",
        "root": state.engine.model_name,
        "parent": None,
        "max_model_len": state.engine.max_model_len,
        "type": "model",
        "display_name": name,
        "created_at": datetime.fromtimestamp(state.created, UTC).isoformat(),
        "lifecycle": "active",
        "max_input_tokens": state.engine.max_model_len,
    }
